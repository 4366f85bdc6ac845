"use strict";
// The chats that this browser keeps, each under a key of its own, so that tabs do not undo each other.

const CHAT = "llmd.chat.", KEEP = "llmd.keep"; // in localStorage
const MOST_CHATS = 100, MOST_LETTERS = 2_000_000; // of all chats together; the oldest ones go first
const TITLE_LETTERS = 60;

const chats = {
  get keeps() { return localStorage.getItem(KEEP) !== "no"; },
  set keeps(yes) {
    if (yes) return localStorage.removeItem(KEEP);
    for (const chat of this.list()) this.remove(chat.id);
    localStorage.setItem(KEEP, "no");
  },

  // All of them, {id, title, changed, turns}, the newest first.
  list() {
    return Object.keys(localStorage).filter((key) => key.startsWith(CHAT)).map((key) => this.get(key.slice(CHAT.length)))
      .filter(Boolean).sort((one, other) => other.changed - one.changed);
  },

  // Unreadable data, which something else wrote, counts as no chat.
  get(id) {
    try {
      const chat = JSON.parse(localStorage.getItem(CHAT + id));
      const whole = chat && typeof chat.title === "string" && Array.isArray(chat.turns)
        && chat.turns.every((turn) => ["user", "assistant"].includes(turn?.role) && typeof turn.content === "string");
      return whole ? { ...chat, id, changed: Number(chat.changed) || 0 } : null;
    } catch {
      return null;
    }
  },

  // Whether it is kept. Older ones make room for it.
  save(chat) {
    if (!this.keeps) return true;
    const text = JSON.stringify({ title: chat.title, changed: chat.changed, turns: chat.turns });
    if (text.length > MOST_LETTERS) return false;
    const others = this.list().filter((other) => other.id !== chat.id);
    const sizes = others.map((other) => localStorage.getItem(CHAT + other.id).length);
    let letters = text.length + sizes.reduce((sum, size) => sum + size, 0);
    while (others.length >= MOST_CHATS || letters > MOST_LETTERS) {
      letters -= sizes.pop();
      this.remove(others.pop().id);
    }
    for (;;) {
      try {
        localStorage.setItem(CHAT + chat.id, text);
        return true;
      } catch { // the browser has less room than was thought
        if (!others.length) return false;
        this.remove(others.pop().id);
      }
    }
  },

  rename(id, title) {
    const chat = this.get(id);
    if (chat && title.trim()) this.save({ ...chat, title: title.trim().slice(0, TITLE_LETTERS) });
  },

  remove(id) { localStorage.removeItem(CHAT + id); },

  titleOf(question) {
    const line = question.trim().replace(/\s+/g, " ");
    return line.length > TITLE_LETTERS ? `${line.slice(0, TITLE_LETTERS - 1)}…` : line;
  },
};

// The list beside the conversation.
const shelf = {
  show() {
    const kept = chats.list();
    $("chat-list").replaceChildren(...kept.map((chat) => this.row(chat)));
    $("no-chats").hidden = kept.length > 0;
    $("no-chats").textContent = chats.keeps ? "Chats are kept in this browser." : "Chats are not kept.";
  },

  row(chat) {
    const line = make("li"), open = button(chat.title, "", () => openChat(chat.id));
    open.className = "open";
    open.title = chat.title;
    open.removeAttribute("aria-label");
    if (chat.id === current.id) open.ariaCurrent = "true";
    const rename = button("✎", `Rename “${chat.title}”`, () => this.rename(line, chat));
    const remove = button("✕", `Delete “${chat.title}”`, () => this.remove(remove, chat));
    rename.className = remove.className = "quiet";
    line.append(open, rename, remove);
    return line;
  },

  rename(line, chat) {
    const field = make("input");
    field.value = chat.title;
    field.ariaLabel = "The chat's name";
    let isOver = false;
    const end = (takes) => {
      if (isOver) return; // it is blurred as it goes
      isOver = true;
      if (takes) renameChat(chat.id, field.value);
      this.show();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) end(true);
      if (event.key === "Escape") end(false);
      event.stopPropagation();
    });
    field.addEventListener("blur", () => end(true));
    line.replaceChildren(field);
    field.focus();
    field.select();
  },

  // A second click is meant.
  remove(pressed, chat) {
    if (pressed.classList.contains("sure")) return removeChat(chat.id);
    pressed.classList.add("sure");
    pressed.textContent = "Delete";
    setTimeout(() => { pressed.classList.remove("sure"); pressed.textContent = "✕"; }, 3000);
  },

  toggle(isOpen) {
    document.body.classList.toggle("shelf-open", isOpen);
    $("menu").ariaExpanded = String(isOpen);
  },
};
