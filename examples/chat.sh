#!/usr/bin/env bash
# Streams one chat answer as text, with curl and python3: chat.sh "Your question".
set -euo pipefail
url=${LLMD_URL:-http://127.0.0.1:8000}
auth="Authorization: Bearer ${LLMD_API_KEY:-unused}"
models=$(curl -fsS "$url/v1/models" -H "$auth")
body=$(python3 -c '
import json, sys
model, question = json.loads(sys.argv[1])["data"][0]["id"], sys.argv[2]
messages = [{"role": "user", "content": question}]
print(json.dumps({"model": model, "stream": True, "max_tokens": 200, "messages": messages}))
' "$models" "${1:-What is an owl?}")
curl -fsSN "$url/v1/chat/completions" -H "$auth" -H 'Content-Type: application/json' -d "$body" |
    python3 -c '
import json, sys
for line in sys.stdin:
    data = line.removeprefix("data: ")
    if not data.startswith("{"):  # an empty line, a comment, or [DONE]
        continue
    event = json.loads(data)
    if "error" in event:
        sys.exit(event["error"]["message"])
    for choice in event["choices"]:
        print(choice["delta"].get("content") or "", end="", flush=True)
print()
'
