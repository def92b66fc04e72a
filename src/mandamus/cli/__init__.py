"""The command line. `main.run` is the entry point; every verb has a module that is imported when the verb is called."""
