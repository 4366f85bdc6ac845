"use strict";
// The model and its load, polled while the tab is visible.

const POLL_MS = 1500, RETRY_MS = 5000;

const $ = (id) => document.getElementById(id);

const board = {
  model: "",
  timer: 0,
  asking: false,
  hasWarmed: false, // the server's renderer, so that the first answer does not wait for it
  outdated: false, // the request under way may have another key

  async refresh() {
    clearTimeout(this.timer);
    this.outdated = this.asking;
    if (document.hidden || this.asking) return;
    this.asking = true;
    let waitMs = POLL_MS;
    try {
      this.show(await server.status());
    } catch (error) {
      waitMs = this.fail(error);
    }
    this.asking = false;
    if (this.outdated) waitMs = 1;
    if (waitMs) this.timer = setTimeout(() => this.refresh(), waitMs);
  },

  show(status) {
    if (!this.hasWarmed) server.markdown("").catch(() => {});
    this.hasWarmed = true;
    this.model = status.model;
    $("model").textContent = status.model;
    document.title = `${status.model} – llmd`;
    const context = status.max_model_len ? `context ${status.max_model_len.toLocaleString("en")} tokens` : "";
    const said = [status.ready ? "" : status.detail, context, devices(status.instances)];
    this.say(said.filter(Boolean).join(" · "), false);
    $("running").textContent = status.running;
    $("waiting").textContent = status.waiting;
    $("kv").textContent = share(status);
    $("rate").textContent = status.output_tokens_per_s.toFixed(1);
    $("instance-rows").replaceChildren(...status.instances.map(row));
    $("facts").textContent = status.uptime_s ? `Up for ${duration(status.uptime_s)}.` : "";
  },

  // How long to wait before the server is asked again; 0: until something is changed.
  fail(error) {
    for (const id of ["running", "waiting", "kv", "rate"]) $(id).textContent = "–";
    this.say(error instanceof Refusal ? error.words : String(error), true);
    if (error.status !== 401) return RETRY_MS;
    wantKey();
    return 0;
  },

  say(text, isBad) {
    const state = $("state");
    if (state.textContent !== text) state.textContent = text; // or it would be read out again
    state.classList.toggle("bad", isBad);
  },
};

function wantKey() {
  $("key-field").hidden = false;
  $("settings").open = true;
  $("key").focus();
}

// The devices, equal ones together: the table has each one.
function devices(instances) {
  const counts = new Map();
  for (const one of instances) {
    const name = one.device_name || one.device;
    counts.set(name, (counts.get(name) || 0) + 1);
  }
  return [...counts].map(([name, count]) => (count > 1 ? `${count} × ${name}` : name)).join(", ");
}

function device(one) {
  return one.device_name ? `${one.device} (${one.device_name})` : one.device;
}

function share(held) {
  if (!held.kv_total_bytes) return "–";
  const percent = (100 * held.kv_used_bytes) / held.kv_total_bytes;
  return `${percent.toFixed(percent < 10 ? 1 : 0)} % of ${size(held.kv_total_bytes)}`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.length; unit++) bytes /= 1024;
  return `${bytes.toFixed(bytes < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} days`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

function row(one) {
  const cells = [one.name, device(one), one.state, one.running, one.waiting, share(one)];
  const line = make("tr");
  line.append(...cells.map((text) => make("td", "", String(text))));
  return line;
}

document.addEventListener("visibilitychange", () => board.refresh());
