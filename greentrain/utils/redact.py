"""Secrets taken out of what is written down: arguments, URLs and settings that look as if they held one.

By name and form only: a secret under a harmless name stays. What is in doubt is taken out, as it is only shown.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"(^|[-_.])(token|secrets?|passw(or)?ds?|passwds?|pass|pwd|passphrase|passcode|credentials?|bearer|cookies?|jwt|dsn"
    r"|auth(orization)?|apikeys?|(api|access|account|auth|client|deploy|encryption|hf|license|master|private|secret"
    r"|shared|signing|ssh|storage|subscription|wandb)[-_.]?keys?)$",
    re.IGNORECASE,
)
_NO_SECRET: Final = re.compile(
    r"(^|[-_.])((pad|eos|bos|unk|mask|cls|sep|image|audio|video|stop|special|per|each|last|first|next|max|min|no)"
    r"[-_.]token|(forward|backward|first|second|one|two|single|multi|per|each|last|next|no)[-_.]pass)$",
    re.IGNORECASE,
)
"""Tokens of a tokenizer, and passes over data."""
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Within apiKey."""
_USER: Final = re.compile(r"(?P<scheme>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{,40}://)[^\s/?#@]*@", re.I)
_QUERY: Final = re.compile(
    r"(?P<name>[?&;](?:[\w.-]*(?:token|secret|password|signature|api[-_]?key|access[-_]?key)|sig|key)=)[^\s&;#]+",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    r"(?P<scheme>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?|\bbearer\s+(?=\S{12}))[^\s\"',]+",
    re.IGNORECASE,
)
_NAMED: Final = re.compile(
    r"(?<![\w.-])(?P<key>[A-Za-z_][\w.-]*)(?P<sign>=|\s*:\s+)(?!\s|(?:bearer|basic|token)\s)"
    r"(?P<value>(?<==)[^\s\"',;&#]+|(?<!=)[^\"'\n]+)",
    re.IGNORECASE,
)
"""``NAME=VALUE`` within a text, as of a shell's command, and a header of HTTP, ``X-Api-Key: VALUE``."""
_MEMBER: Final = re.compile(r"(?P<name>([\"'])(?P<key>[\w.-]+)\2\s*:\s*)([\"'])(?:(?!\4).)*\4")
"""A member of a mapping in JSON or Python."""
_KNOWN: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|[sr]k_(?:live|test)_\w{16,}|gh[opsur]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{16,}|glsa_\w{16,}|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}|nvapi-[\w-]{16,}"
    r"|gsk_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{16,}|xox[a-z]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
"""Forms of keys by their issuers' documentation: Hugging Face, OpenAI, Stripe, GitHub, GitLab, Grafana, npm, PyPI,
NVIDIA, Groq, Replicate, Slack, AWS, Google (two); a JSON Web Token."""
_ASSIGNED: Final = re.compile(r"(?P<name>[+~]*-{0,2}[A-Za-z_][\w.-]*)=(?P<value>.+)", re.DOTALL)


def is_secret(name: str) -> bool:
    """Return True if the value under a name is likely a secret: ``--hub-token``, ``WANDB_API_KEY``, ``db.password``."""
    bare = _HUMP.sub("_", name.lstrip("+~-"))
    return bool(_SECRET.search(bare)) and not _NO_SECRET.search(bare)


def text(words: str) -> str:
    """Return a text without what looks like a key, a password in a URL, or what a secret's name stands before."""
    words = _USER.sub(rf"\g<scheme>{HIDDEN}@", words)
    words = _QUERY.sub(rf"\g<name>{HIDDEN}", words)
    words = _HEADER.sub(rf"\g<scheme>{HIDDEN}", words)
    words = _MEMBER.sub(lambda m: f'{m["name"]}"{HIDDEN}"' if is_secret(m["key"]) else m[0], words)
    words = _NAMED.sub(lambda m: f"{m['key']}{m['sign']}{HIDDEN}" if is_secret(m["key"]) else m[0], words)
    return _KNOWN.sub(HIDDEN, words)


def arguments(argv: Sequence[str]) -> list[str]:
    """Return a command line without the values of options that hold secrets, ``--name VALUE`` and ``name=VALUE``."""
    out: list[str] = []
    hide = False
    for word in argv:
        assigned = _ASSIGNED.fullmatch(word)
        if hide and not word.startswith("--"):
            out.append(HIDDEN)
            hide = False
        elif assigned is not None and is_secret(assigned["name"]):
            out.append(f"{assigned['name']}={HIDDEN}")
            hide = False
        else:
            hide = word.startswith("-") and is_secret(word)
            out.append(text(word))
    return out


def settings(found: Any, name: str = "") -> Any:
    """Return plain nested settings without what looks like a secret, by the name of its key or by its form."""
    if isinstance(found, Mapping):
        return {key: settings(value, str(key)) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [settings(value, name) for value in found]
    if isinstance(found, str):
        return HIDDEN if found and is_secret(name) else text(found)
    return found
