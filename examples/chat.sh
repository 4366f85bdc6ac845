#!/usr/bin/env bash
# Streams one chat answer with curl: chat.sh "Your question" (plain ASCII without quotes).
set -euo pipefail
url=${LLMD_URL:-http://127.0.0.1:8000}
model=$(curl -fsS "$url/v1/models" | sed -E 's/.*"id": ?"([^"]+)".*/\1/')
curl -fsSN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d @- <<JSON
{"model": "$model", "stream": true, "max_tokens": 100,
 "messages": [{"role": "user", "content": "${1:-What is an owl?}"}]}
JSON
