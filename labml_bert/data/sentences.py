"""
# Splitting text into sentences

Where does a sentence end? Next sentence prediction needs an answer for text in any language. The rule here
uses only punctuation, and knows nothing about languages:

- `.`, `!`, `?` and `…` end a sentence if whitespace follows;
- `。`, `।` and similar marks always end a sentence;
- an empty line ends a sentence. A single line break doesn't, because prose is often wrapped.

Closing quotes and brackets stay with their sentence. The rule splits `e.g. this` in two, which does little
harm here: the two parts follow each other, as sentences do.
"""

import re

# The lookbehind makes the regex try a run of dots only once, instead of again from each dot.
SENTENCE_END = re.compile(
    r"""(?<![.!?…])[.!?…]++["'”’»)\]}]*(?=\s)|[。！？｡।॥؟۔።։။។]+["'”’»」』）】》]*|\n\s*\n"""
)


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of `text`, in order. Only the whitespace between them is lost."""
    sentences, start = [], 0
    for match in SENTENCE_END.finditer(text):
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]
