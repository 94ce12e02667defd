"""
# Steps: data

From a text to batches: random windows, and how long they are.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="data/windows.py:random_windows",
        title="Random windows of a text",
        task="Batch(input_ids, position_ids), both (B, T)",
        chapter="embeddings",
        hints=(
            "Each row starts at a random token, and its positions start at a random offset. So you need two "
            "random numbers per row, shape `(B, 1)`, and `torch.arange(T)`.",
            "`torch.randint(n, ...)` draws from 0 to n - 1. The last start is `len(token_ids) - T`, and the "
            "last offset is `max_position_embeddings - T`.",
            "Pass `generator=generator` to both draws. The sum of `(B, 1)` and `(T)` is `(B, T)`, and you "
            "can index `token_ids` with it.",
        ),
        mistakes=(
            Mistake(
                "all windows at position 0",
                "offset + t)",
                "(0 * offset) + t)",
                "Your positions always start at 0. Then the embeddings of later positions are still random "
                "when the sequences get longer. Draw an offset for each row.",
            ),
            Mistake(
                "positions in the text",
                "offset + t)",
                "start + t)",
                "Your positions are those of the tokens in the text. The positions of a row start at a "
                "random offset, which is independent of where its window starts.",
            ),
            Mistake(
                "one offset for all rows",
                "torch.randint(max_position_embeddings - T + 1, (B, 1), generator=generator)",
                "torch.randint(max_position_embeddings - T + 1, (1, 1), generator=generator).expand(B, 1)",
                "All rows of your batch have the same positions. Draw an offset for each row.",
            ),
            Mistake(
                "one start for all rows",
                "torch.randint(len(token_ids) - T + 1, (B, 1), generator=generator)",
                "torch.randint(len(token_ids) - T + 1, (1, 1), generator=generator).expand(B, 1)",
                "All rows of your batch are the same window. Draw a start for each row.",
            ),
            Mistake(
                "last token never used",
                "len(token_ids) - T + 1",
                "len(token_ids) - T",
                "Your windows never reach the last token. How many windows of T tokens fit into the text?",
            ),
            Mistake(
                "last position never used",
                "max_position_embeddings - T + 1",
                "max_position_embeddings - T",
                "Your windows never reach the last position, so its embedding is never trained.",
            ),
            Mistake(
                "draws from another generator",
                "start = torch.randint(len(token_ids) - T + 1, (B, 1), generator=generator)",
                "start = torch.randint(len(token_ids) - T + 1, (B, 1))",
                "You draw from PyTorch's global generator. Pass `generator`, whose state says where we are "
                "in the data.",
            ),
        ),
    ),
    Step(
        name="data/curriculum.py:length_at",
        title="The curriculum",
        task="the length of the stage that a fraction of the budget falls into",
        chapter="stuck",
        hints=(
            "Stage i lasts until the sum of the first i + 1 fractions.",
            "`itertools.accumulate` computes the running sums. Return the length of the first stage whose "
            "end is greater than `progress`.",
            "At the end of the budget, and if rounding makes the last sum less than 1, return the last "
            "length.",
        ),
        mistakes=(
            Mistake(
                "fractions not added up",
                "accumulate(stage.fraction for stage in stages)",
                "[stage.fraction for stage in stages]",
                "You compare `progress` with the fraction of each stage. Compare it with the stage's end, "
                "the sum of all fractions so far.",
            ),
            Mistake(
                "stage ends too late",
                "if progress < end)",
                "if progress <= end)",
                "Exactly at the end of a stage, the next one begins.",
            ),
            Mistake(
                "back to the first length at the end",
                "stages[-1].length)",
                "stages[0].length)",
                "When the budget is spent, the length must be that of the last stage.",
            ),
            Mistake(
                "next stage at once",
                "if progress < end)",
                "if progress + stages[0].fraction < end)",
                "Your first stage is skipped. At progress 0, the first length applies.",
            ),
        ),
    ),
)
