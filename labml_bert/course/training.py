"""
# Steps: training

From batches to a trained model: the optimizer, the step and the evaluation.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="training/optimization.py:TrainingArguments.learning_rate_at",
        title="The learning rate",
        task="warm-up from 0 to the peak, then linear decay to 0",
        chapter="recipe",
        hints=(
            "The formula is at the top of the file. Its minimum chooses between warm-up and decay.",
            "Without warm-up, `warmup_ratio` is 0, and the learning rate starts at the peak. Don't divide by "
            "0.",
            "The check also tries a `progress` above 1, at which the learning rate must be 0.",
        ),
        mistakes=(
            Mistake(
                "no warm-up",
                "min(warmup, decay)",
                "decay",
                "There is no warm-up: the learning rate doesn't start at 0.",
            ),
            Mistake(
                "no decay",
                "min(warmup, decay)",
                "min(warmup, 1.0)",
                "The learning rate stays at its peak. It must fall to 0 at the end of the budget.",
            ),
            Mistake(
                "decay begins at the start",
                "(1 - progress) / (1 - self.warmup_ratio)",
                "1 - progress",
                "Your learning rate never reaches its peak, because the decay starts at progress 0. At the "
                "end of the warm-up, the decay must still be a factor of 1.",
            ),
            Mistake(
                "division by zero",
                "progress / self.warmup_ratio if self.warmup_ratio else math.inf",
                "progress / self.warmup_ratio",
                "Without warm-up, you divide by 0.",
            ),
            Mistake(
                "negative learning rate",
                "max(0.0, min(warmup, decay))",
                "min(warmup, decay)",
                "At a `progress` above 1, your learning rate is negative instead of 0.",
            ),
            Mistake(
                "peak ignored",
                "self.learning_rate * max",
                "1.0 * max",
                "Your peak is always 1. It must be `self.learning_rate`.",
            ),
        ),
    ),
    Step(
        name="training/optimization.py:parameter_groups",
        title="What decays",
        task="two dictionaries with params, weight_decay and has_decay: of matrices, and of vectors",
        chapter="recipe",
        hints=(
            "Biases and LayerNorm weights have one dimension. Everything that decays has more.",
            "Skip parameters that don't require a gradient, and those in `exclude`. Compare tensors by "
            "`id`: the operator `in` compares their values.",
            'Return two dictionaries with the keys "params", "weight_decay" and "has_decay", the matrices '
            "first. `has_decay` is true for the matrices and false for the vectors.",
        ),
        mistakes=(
            Mistake(
                "everything decays",
                '"weight_decay": 0.0, "has_decay": False',
                '"weight_decay": weight_decay, "has_decay": False',
                "Biases and LayerNorms decay, too. Their group must have a weight decay of 0.",
            ),
            Mistake(
                "has_decay missing",
                '"weight_decay": weight_decay, "has_decay": True}',
                '"weight_decay": weight_decay}',
                "A group lacks the key `has_decay`. It must be true for the matrices and false for the "
                "vectors, so it says whether the parameters of the group decay.",
            ),
            Mistake(
                "has_decay always true",
                '"has_decay": False',
                '"has_decay": True',
                "`has_decay` must be true for the matrices and false for the vectors.",
            ),
            Mistake(
                "LayerNorm weights decay",
                "matrices = [p for p in parameters if p.dim() > 1]\n"
                "    vectors = [p for p in parameters if p.dim() <= 1]",
                "biases = {id(p) for name, p in model.named_parameters() if 'bias' in name}\n"
                "    matrices = [p for p in parameters if id(p) not in biases]\n"
                "    vectors = [p for p in parameters if id(p) in biases]",
                "Your first group contains LayerNorm weights. Their names differ from model to model, so "
                "look at the number of dimensions.",
            ),
            Mistake(
                "frozen parameters included",
                "if p.requires_grad and id(p)",
                "if id(p)",
                "You include parameters that don't require a gradient.",
            ),
            Mistake(
                "excluded parameters included",
                "if p.requires_grad and id(p) not in excluded_ids",
                "if p.requires_grad",
                "You include parameters from `exclude`. Another optimizer trains them, so they'd be updated "
                "twice.",
            ),
            Mistake(
                "tensors compared with in",
                "id(p) not in excluded_ids",
                "p not in exclude",
                "`in` compares tensors element by element. Compare identities, such as `id(p)`.",
            ),
            Mistake(
                "groups swapped",
                '{"params": matrices, "weight_decay": weight_decay, "has_decay": True},\n'
                '        {"params": vectors, "weight_decay": 0.0, "has_decay": False}',
                '{"params": vectors, "weight_decay": weight_decay, "has_decay": True},\n'
                '        {"params": matrices, "weight_decay": 0.0, "has_decay": False}',
                "You have swapped the groups: biases decay, and matrices don't.",
            ),
        ),
    ),
    Step(
        name="training/optimization.py:block_matrices",
        title="What Muon trains",
        task="the trainable matrices of the blocks",
        chapter="ladder",
        hints=(
            "The blocks of an encoder are in an `nn.ModuleList`. `model.modules()` lists all modules.",
            "Collect the parameters of these lists that have two dimensions and require a gradient.",
        ),
        mistakes=(
            Mistake(
                "embeddings and heads included",
                "for block in blocks for p in block.parameters()",
                "for p in model.parameters()",
                "You include embeddings and heads. Muon suits only matrices between hidden states.",
            ),
            Mistake(
                "vectors included",
                "if p.dim() == 2 and p.requires_grad",
                "if p.requires_grad",
                "You include biases and LayerNorms. Muon needs matrices, with two dimensions.",
            ),
            Mistake(
                "frozen matrices included",
                "if p.dim() == 2 and p.requires_grad",
                "if p.dim() == 2",
                "You include matrices that don't require a gradient.",
            ),
        ),
    ),
    Step(
        name="training/optimization.py:set_learning_rate",
        title="BERT's Adam has no bias correction",
        task="the learning rate, epsilon and weight decay of each group, for this step",
        chapter="recipe",
        hints=(
            "Ask `arguments.learning_rate_at` for the learning rate. With bias correction, that's nearly "
            "all.",
            "Without bias correction, the docstring says which factor the learning rate gets, and that "
            "epsilon is divided by c.",
            "AdamW multiplies the weight decay by the learning rate of the group, so divide it by the same "
            "factor. The first optimizer is AdamW. A second one is Muon, which gets only the plain learning "
            "rate. Groups whose `has_decay` is false have a decay of 0.",
        ),
        mistakes=(
            Mistake(
                "bias correction kept",
                "if not arguments.adam_bias_correction:",
                "if False:",
                "You ignore `adam_bias_correction`.",
            ),
            Mistake(
                "bias correction always undone",
                "if not arguments.adam_bias_correction:",
                "if True:",
                "You undo the bias correction even if `adam_bias_correction` is set.",
            ),
            Mistake(
                "learning rate not reported",
                'group["learning_rate"] = learning_rate',
                "pass",
                "Reports show the `learning_rate` of AdamW's groups, and your code doesn't set it.",
            ),
            Mistake(
                "epsilon not scaled",
                "epsilon = epsilon / c",
                "pass",
                "Your epsilon is wrong without bias correction. See the formula: it's divided by c, too.",
            ),
            Mistake(
                "weight decay scaled",
                "decay / scale",
                "decay",
                "Without bias correction, your weight decay has the factor of the learning rate. AdamW "
                "multiplies the decay by the learning rate, so undo the factor.",
            ),
            Mistake(
                "Muon's learning rate scaled",
                'group["lr"] = learning_rate',
                'group["lr"] = learning_rate * scale',
                "Muon has no bias correction that you could undo. It gets the plain learning rate.",
            ),
            Mistake(
                "vectors decay",
                'arguments.weight_decay if group["has_decay"] else 0.0',
                "arguments.weight_decay",
                "You set a weight decay in the group of biases and LayerNorms. Look at `has_decay`.",
            ),
            Mistake(
                "decay divided again in each step",
                'arguments.weight_decay if group["has_decay"] else 0.0',
                'group["weight_decay"]',
                "You divide the weight decay of the previous step, so it changes with every step. Start from "
                "`arguments.weight_decay`.",
            ),
            Mistake(
                "Muon's weight decay scaled",
                'group["lr"] = learning_rate',
                'group["lr"], group["weight_decay"] = learning_rate, arguments.weight_decay / scale',
                "You change Muon's weight decay. Muon gets only the plain learning rate.",
            ),
        ),
    ),
    Step(
        name="training/trainer.py:Step.backward",
        title="The loop: gradients of micro-batches",
        task="add the gradient of the loss, and add up the metrics",
        chapter="cost",
        hints=(
            "PyTorch adds gradients up by itself: call `backward` and don't set them to zero. DDP divides by "
            "`world_size()`, so multiply the loss by it first. A loss of `None` is a mistake of the caller. "
            "`self.trainer.scaler.scale` scales the loss for float16.",
            "`self.metrics` holds the sums of the loss and of the other metrics over the micro-batches.",
            "Detach each value before you keep it. Otherwise you keep the whole graph in memory.",
        ),
        mistakes=(
            Mistake(
                "metrics overwritten",
                "self.metrics[key] + value if key in self.metrics else value",
                "value",
                "Your metrics are those of the last micro-batch. Add them up.",
            ),
            Mistake(
                "graph kept",
                "value = value.detach()",
                "pass",
                "Your metrics still have a gradient, so the graph of every micro-batch stays in memory. "
                "Detach them.",
            ),
            Mistake(
                "world size ignored",
                "self.trainer.scaler.scale(world_size() * loss).backward()",
                "self.trainer.scaler.scale(loss).backward()",
                "DDP averages the gradients of all processes, but you need their sum. Multiply the loss by "
                "`world_size()`.",
            ),
            Mistake(
                "divided by the number of micro-batches",
                "scale(world_size() * loss)",
                "scale(world_size() * loss / self.trainer.arguments.gradient_accumulation_steps)",
                "You divide by the number of micro-batches. Their losses are already divided by the number "
                "of labels in the whole batch, so you only have to add up the gradients.",
            ),
            Mistake(
                "metric scaled",
                "self.trainer.scaler.scale(world_size() * loss).backward()",
                "loss = world_size() * loss\n        self.trainer.scaler.scale(loss).backward()",
                "The loss in `self.metrics` is multiplied by `world_size()`. Multiply it only for the "
                "gradient.",
            ),
            Mistake(
                "loss not among the metrics",
                '{"loss": loss, **metrics}',
                "metrics",
                "The loss is missing from `self.metrics`.",
            ),
            Mistake(
                "scaler ignored",
                "self.trainer.scaler.scale(world_size() * loss).backward()",
                "(world_size() * loss).backward()",
                "You don't scale the loss, so in float16, small gradients become 0. Call `backward` on the "
                "result of `self.trainer.scaler.scale`.",
            ),
            Mistake(
                "no gradient",
                "self.trainer.scaler.scale(world_size() * loss).backward()",
                "pass",
                "There are no gradients. Call `backward` on the loss.",
            ),
            Mistake(
                "a missing loss accepted",
                'assert loss is not None, "the batch has no labels"',
                "if loss is None: return",
                "A batch without labels has no loss. Training on it silently would hide a mistake, so raise "
                "an exception.",
            ),
        ),
    ),
    Step(
        name="training/evaluation.py:evaluate_masked_lm",
        title="Evaluation",
        task="the mean loss and accuracy over the labeled tokens of the held-out windows",
        chapter="masking",
        hints=(
            "Put the model into eval mode, and back into train mode at the end. Go through the windows a few "
            "rows at a time, so the memory suffices. With `tokens`, use only the first `tokens // T` "
            "windows, but at least one.",
            "Batches have different numbers of labels. Multiply the mean loss of each batch by its number of "
            "labels, add up, and divide by the total.",
            "Move the tensors to `trainer.device`, and call the model in `with trainer.autocast():`. "
            "`output.labels` has one entry per label. `masked_accuracy` computes the accuracy of a batch.",
        ),
        mistakes=(
            Mistake(
                "dropout during the evaluation",
                "model.eval()",
                "pass",
                "The model is in train mode while you evaluate it, so dropout changes the result.",
            ),
            Mistake(
                "no dropout after the evaluation",
                "model.train()",
                "pass",
                "The model stays in eval mode, so training continues without dropout.",
            ),
            Mistake(
                "mean over batches",
                "number = len(output.labels)",
                "number = 1",
                "You average over batches, so a label in a batch with few labels counts more than "
                "others. Divide the sum over all labels by their number.",
            ),
            Mistake(
                "means added up",
                "loss += output.loss.item() * number",
                "loss += output.loss.item()",
                "You add up the losses of the batches, but each is the mean over the labels of its batch. "
                "Multiply it by their number first.",
            ),
            Mistake(
                "limit ignored",
                "N if tokens is None else min(N, max(1, tokens // T))",
                "N",
                "You evaluate all windows, whatever `tokens` is. Evaluate as many whole windows as have that "
                "many tokens together, but at least one.",
            ),
            Mistake(
                "limit in windows",
                "max(1, tokens // T)",
                "max(1, tokens)",
                "`tokens` is a number of tokens, not of windows. A window has T tokens.",
            ),
            Mistake(
                "only the first batch",
                "for start in range(0, windows, rows):",
                "for start in range(0, min(windows, 1), rows):",
                "You evaluate only the first batch of windows.",
            ),
        ),
        twins=("evaluate_pretraining",),
    ),
)
