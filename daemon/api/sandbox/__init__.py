"""Client programs that can be slow, in forks that can be killed: chat templates and grammars."""
