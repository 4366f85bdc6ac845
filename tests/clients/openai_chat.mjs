// openai-node: a chat streamed, against the same chat whole.
import OpenAI from "openai";
import { VERSION } from "openai/version";

const client = new OpenAI({ baseURL: `${process.env.LLMD_URL}/v1`, apiKey: "unused" });
const model = (await client.models.list()).data[0].id;
const asked = {
  model,
  messages: [{ role: "user", content: "Name three rivers of Europe." }],
  temperature: 0,
  max_tokens: 24,
};
const whole = (await client.chat.completions.create(asked)).choices[0].message.content;
const pieces = [];
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  pieces.push(chunk.choices[0]?.delta?.content ?? "");
}
if (!whole || pieces.join("") !== whole) {
  throw new Error(`${JSON.stringify(pieces.join(""))} is not ${JSON.stringify(whole)}`);
}
console.log(`openai-node ${VERSION}: ${pieces.length} pieces, ${JSON.stringify(whole)}`);
