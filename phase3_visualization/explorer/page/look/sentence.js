// The sentence as it is typed: reading it, and explaining what the models cannot read.
"use strict";

const Sentence = (() => {
  const { byId, element } = View;
  const EXPLAINED = 3; // unknown words

  // "The dog, sat." -> ["the", "dog", "sat"], marks aside: no word of the language has one.
  const split = (text) => text.toLowerCase().replace(/[.,!?;:"“”()]/g, " ").split(/\s+/).filter(Boolean);

  // {words} or {problem: text, unknown: [{word, before}]}.
  function read(text, language) {
    const words = split(text);
    if (words.length === 0) return { problem: "The sentence is empty: type or choose at least one word." };
    if (words.length > language.maxLength) {
      return { problem: `The sentence has ${words.length} words: the models read at most ${language.maxLength}.` };
    }
    const places = words.map((word, i) => ({ word, before: words[i - 1] }));
    const unknown = places.filter(({ word }) => !language.words.includes(word));
    if (unknown.length === 0) return { words };
    const [first] = unknown;
    const more = unknown.length > 1 ? ` and ${unknown.length - 1} more` : "";
    const verb = unknown.length > 1 ? "are" : "is";
    const problem = `“${first.word}”${more} ${verb} not among the ${language.words.length} words that the models know.`;
    return { problem, unknown };
  }

  // What is wrong, and for each unknown word others as buttons. What is below stays at the last sentence that was read.
  function explain({ problem = "", unknown = [] }, language, onTake) {
    const lines = unknown.slice(0, EXPLAINED).map(({ word, before }) => {
      const { says, words } = Words.instead(word, before, language);
      const buttons = words.map((known) => {
        const button = element("button", { type: "button", class: "chip" }, known);
        button.addEventListener("click", () => onTake(word, known));
        return button;
      });
      return element("p", {}, element("b", {}, word), ` ${says} `, ...buttons);
    });
    byId("message").replaceChildren(...(problem ? [element("p", {}, problem)] : []), ...lines);
  }

  // The typed text with one word replaced by another, wherever it stands.
  const replaced = (text, unknown, word) => split(text).map((part) => (part === unknown ? word : part)).join(" ");

  return { read, explain, replaced };
})();
