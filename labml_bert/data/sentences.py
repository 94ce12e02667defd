"""
# Splitting text into sentences

Where does a sentence end? Next sentence prediction needs an answer for text in any language. The rule here
knows no language, only punctuation:

- `.`, `!`, `?` and `…` end a sentence if whitespace follows;
- `。`, `।` and the like always end one;
- an empty line ends one. A line break alone doesn't, because prose is wrapped.

Closing quotes and brackets stay with their sentence. The rule splits `e.g. this` in two. That does little
harm here: the two pieces follow each other, as sentences do.
"""

import re

# The lookbehind makes the regex try a run of dots once, not again from each of its dots.
SENTENCE_END = re.compile(
    r"""(?<![.!?…])[.!?…]++["'”’»)\]}]*(?=\s)|[。！？｡।॥؟۔።։။។]+["'”’»」』）】》]*|\n\s*\n"""
)


def split_sentences(text: str) -> list[str]:
    """The sentences of `text`, in order. Only the whitespace around them is lost."""
    sentences, start = [], 0
    for match in SENTENCE_END.finditer(text):
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]
