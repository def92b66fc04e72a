"""The demo's parts: the scene (folder, agent, policy), its actors (one process each), the story, and how it is told."""
