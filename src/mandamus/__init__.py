"""Agents act only under a writ, and every act leaves proof."""
