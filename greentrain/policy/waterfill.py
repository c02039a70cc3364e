"""The best plan against a known intensity, by filling water into the hull of the choices."""

from greentrain.policy.token_price import filled, price, row_at

__all__ = ["filled", "price", "row_at"]
