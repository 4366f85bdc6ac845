#!/usr/bin/env bash
# Says how to talk to the daemon that is about to start.
cat <<'TEXT'
llmd starts. The first time it converts the embedded model, which takes about half a minute.
Once it is ready, in a second terminal:

  bash examples/chat.sh "Tell me about owls"
  .venv/bin/python examples/openai_chat.py "Tell me about owls"
  .venv/bin/llmd-top

Ctrl-C ends it.

TEXT
