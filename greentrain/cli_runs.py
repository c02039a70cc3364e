"""``greentrain watch | ui``: runs that go on, and many of them."""
