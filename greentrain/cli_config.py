"""``greentrain config schema | check | show``: the configuration for editors, for people, and checked."""
