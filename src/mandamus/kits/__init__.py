"""Tools and rules of one trade, around functions of yours: `treasury.kit(...)`. What a kit adds is a plugin like any other."""
