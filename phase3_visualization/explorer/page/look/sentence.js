// The sentence: reading what is typed, explaining what the model cannot read, and the row of words to choose from.
"use strict";

const Sentence = (() => {
  const { byId, element } = View;

  // "The dog, sat." -> ["the", "dog", "sat"], as the Python scripts read it.
  const split = (text) => text.toLowerCase().replace(/[.,]/g, " ").split(/\s+/).filter(Boolean);

  // {words} or {problem: text, unknown: word}.
  function read(text, language) {
    const words = split(text);
    if (words.length === 0) return { problem: "The sentence is empty: type at least one word." };
    if (words.length > language.maxLength) {
      return { problem: `The sentence has ${words.length} words: the models read at most ${language.maxLength}.` };
    }
    const unknown = words.filter((word) => !language.words.includes(word));
    if (unknown.length === 0) return { words };
    const more = unknown.length > 1 ? ` (and ${unknown.length - 1} more)` : "";
    const problem = `"${unknown[0]}"${more} is not among the ${language.words.length} words that the models know.`;
    return { problem, unknown: unknown[0] };
  }

  // One line; the nearest known words are buttons. The view stays at the last sentence that could be read.
  function explain({ problem = "", unknown = null }, language, onTake) {
    const near = unknown === null ? [] : Statistics.nearest_words(unknown, language.words, 3);
    const buttons = near.map((word) => {
      const button = element("button", { type: "button", class: "near" }, word);
      button.addEventListener("click", () => onTake(unknown, word));
      return button;
    });
    const hint = near.length ? " Nearest:" : " No known word is near.";
    const text = unknown === null ? problem : problem + hint;
    byId("message").replaceChildren(text, ...buttons.flatMap((button) => [" ", button]));
  }

  // The typed text with one word replaced by another, wherever it stands.
  const replaced = (text, unknown, word) => split(text).map((part) => (part === unknown ? word : part)).join(" ");

  // The words that the model reads, as a group of which one is chosen: the query. Arrows move the choice.
  function drawWords(labels, chosen, hidden, onChoose) {
    const box = byId("words");
    const focused = box.contains(document.activeElement);
    box.replaceChildren(
      ...labels.map((label, position) => {
        const isHidden = hidden.includes(position);
        const word = element("button", {
          type: "button", role: "radio", "aria-checked": String(position === chosen),
          tabindex: position === chosen ? 0 : -1, // Tab enters the group once; arrows move in it
          class: isHidden ? "hidden-word" : null, title: isHidden ? "hidden" : null,
        }, label);
        word.addEventListener("click", () => onChoose(position));
        return word;
      }),
    );
    if (focused) box.children[chosen].focus({ preventScroll: true });
  }

  // Arrow keys in the row of words.
  function moveChoice(event, chosen, length, onChoose) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    onChoose((chosen + by + length) % length);
  }

  return { read, explain, replaced, drawWords, moveChoice };
})();
