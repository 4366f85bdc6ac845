#!/usr/bin/env bash
# Streams one chat answer with curl: chat.sh "Your question".
set -euo pipefail
url=${LLMD_URL:-http://127.0.0.1:8000}
json() { python3 -uc "import json, sys; $1"; }
model=$(curl -fsS "$url/v1/models" | json 'print(json.load(sys.stdin)["data"][0]["id"])')
printf '%s\0' "$model" "${1:-What is an owl?}" | json '
model, question = sys.stdin.read().split("\0")[:2]
messages = [{"role": "user", "content": question}]
print(json.dumps({"model": model, "stream": True, "max_tokens": 100, "messages": messages}))' |
  curl -fsSN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d @- | json '
for line in sys.stdin:
    if line.startswith("data: {"):
        print(json.loads(line[6:])["choices"][0]["delta"].get("content") or "", end="", flush=True)
print()'
