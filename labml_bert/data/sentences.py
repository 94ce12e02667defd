"""
# Splitting text into sentences

Where does a sentence end? Next sentence prediction needs an answer for text in any language. The rule here
uses only punctuation, spaces and line breaks, and knows nothing about languages:

- `.`, `!`, `?` and `…` end a sentence if whitespace follows.
- `。`, `।` and similar marks always end a sentence.
- An empty line ends a sentence. A single line break doesn't, because prose is often wrapped.

Quotes and brackets that close after such a mark belong to the sentence. The rule splits `e.g. this` in two.
That does little harm here, because the two parts follow each other, as sentences do.
"""

import re

# The lookbehind makes the regex try a run of dots once, from the first dot, and not from each dot.
SENTENCE_END = re.compile(
    r"""(?<![.!?…])[.!?…]++["'”’»)\]}]*(?=\s)|[。！？｡।॥؟۔።։။។]+["'”’»」』）】》]*|\n\s*\n"""
)


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of `text`, in order. Only whitespace around them is lost."""
    sentences, start = [], 0
    for match in SENTENCE_END.finditer(text):
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]
