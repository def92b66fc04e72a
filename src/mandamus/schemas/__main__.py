"""`python -m mandamus.schemas` rewrites the schemas in place."""

from mandamus.schemas import write

write()
