"""Write the reference of every key into docs/configuration.md: python docs/make_configuration.py."""

from pathlib import Path
from typing import Final

from greentrain.config.reference import reference

PAGE: Final = Path(__file__).with_name("configuration.md")
BEGIN: Final = "<!-- made by docs/make_configuration.py -->\n"
END: Final = "<!-- end -->\n"


def made(page: str) -> str:
    """Return the page with the reference as it is now between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
