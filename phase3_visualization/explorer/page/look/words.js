// The words of the language: the sentence as it is typed, all words to choose from, and for one that the language does
// not have, words that take its place.
//
// A word of ours that it lacks is answered by what it means ("elephant": the only animals it knows are cat, dog, fox), then by its
// place ("after a noun comes a verb"), and by its letters ("caat": cat).
"use strict";

const Words = (() => {
  const { byId, element } = View;
  const EXPLAINED = 2; // unknown words of a sentence
  const OFFERED = 4; // words in place of one
  const SHOWN = 30; // letters of one

  const NAMES = { // as they are said after "the only": "the only animals it knows: cat, dog, fox"
    determiner: "words like “the”", adjective: "adjectives", adverb: "adverbs", verb: "verbs", preposition: "prepositions",
    animal: "animals", person: "people", vehicle: "vehicles", toy: "small things", seat: "seats", bed: "beds and boxes",
    land: "open land", water: "water", road: "roads and hills", building: "buildings",
  };
  const NOUNS = ["animal", "person", "vehicle", "toy", "seat", "bed", "land", "water", "road", "building"];
  const NO_SUCH = { // kinds of words that the language does without
    pronoun: "It has no pronouns: say who it is.",
    joining: "It has no such word: one sentence, one verb.",
  };
  const LIKE = 0.66; // how similar a word must be to be taken for a slip of the pen, and at most one letter longer

  const groupOf = (word, groups) => Object.keys(groups).find((name) => groups[name].includes(word)) ?? null;
  const meaningOf = (word, meanings) => Object.keys(meanings).find((name) => meanings[name].includes(word)) ?? null;

  const isNoun = (word, groups) => NOUNS.includes(groupOf(word, groups));
  const [SUBJECTS, PLACES] = [NOUNS.slice(0, 4), NOUNS.slice(4)];

  // All words of the kind of a noun, one and many: "cats" -> cat, cats, dog, dogs, ...; of another word it alone.
  const kindOf = (word, groups) => (isNoun(word, groups) ? groups[groupOf(word, groups)] : [word]);
  const nameOfKind = (word, groups) => (isNoun(word, groups) ? NAMES[groupOf(word, groups)] : `“${word}”`);
  const aWordFor = (word, groups) => (isNoun(word, groups) ? `a word for ${nameOfKind(word, groups)}` : `the word “${word}”`);

  // Four nouns of four kinds, all one or all many, among them this one; of another part of speech this word and three more.
  function oneOfEachKind(word, groups) {
    const own = groupOf(word, groups);
    if (!isNoun(word, groups)) return [word, ...groups[own].filter((other) => other !== word)].slice(0, 4).sort();
    const isMany = groups[own].indexOf(word) % 2;
    const rivals = SUBJECTS.includes(own) ? SUBJECTS : PLACES;
    const others = rivals.filter((name) => name !== own).slice(0, 3);
    return rivals.filter((name) => name === own || others.includes(name))
      .map((name) => (name === own ? word : groups[name][isMany]));
  }

  // What the grammar expects after the word before: groups that may stand there.
  function expected(before, groups) {
    const group = before === undefined ? "preposition" : groupOf(before, groups);
    if (group === null) return null;
    if (group === "preposition") return "determiner";
    if (group === "determiner" || group === "adjective") return "noun";
    return NOUNS.includes(group) ? "verb" : "preposition"; // after a verb or an adverb
  }

  // How many letters two words share in common pieces: the longest piece, then the same to its left and right.
  function sharedLetters(a, b) {
    let [length, startA, startB] = [0, 0, 0];
    for (let i = 0; i < a.length; i++) {
      for (let j = 0; j < b.length; j++) {
        let n = 0;
        while (i + n < a.length && j + n < b.length && a[i + n] === b[j + n]) n++;
        if (n > length) [length, startA, startB] = [n, i, j];
      }
    }
    if (length === 0) return 0;
    return length + sharedLetters(a.slice(0, startA), b.slice(0, startB)) +
      sharedLetters(a.slice(startA + length), b.slice(startB + length));
  }

  // The k known words most similar to a word, as Python's difflib.get_close_matches finds them (Ratcliff & Metzener
  // 1988): the share of letters in common pieces. Empty if no word is similar enough; 0.5 as in toy_language.tokenize.
  function nearestWords(word, vocabulary, k = 3, cutoff = 0.5) {
    const similar = vocabulary
      .filter((known) => !known.startsWith("<"))
      .map((known) => ({ known, ratio: (2 * sharedLetters(known, word)) / (known.length + word.length) }))
      .filter(({ ratio }) => ratio >= cutoff);
    similar.sort((a, b) => b.ratio - a.ratio || (a.known < b.known ? 1 : -1));
    return similar.slice(0, k).map(({ known }) => known);
  }

  // All words of a group, of nouns one form of each; first the one that is written most like the word.
  function someOf(group, groups, word) {
    const all = groups[group].filter((_, i) => !NOUNS.includes(group) || i % 2 === 0);
    const near = nearestWords(word, all, 1);
    return [...near, ...all.filter((known) => !near.includes(known))];
  }

  // An unknown word -> {says, words}: why, and what to take in its place.
  function instead(word, before, language) {
    const { groups, meanings, words } = language;
    const meaning = meaningOf(word, meanings);
    if (NO_SUCH[meaning]) return { says: NO_SUCH[meaning], words: [] };
    const some = meaning && someOf(meaning, groups, word);
    if (meaning) return { says: some.length > OFFERED ? `Some ${NAMES[meaning]} it knows:` : `The only ${NAMES[meaning]} it knows:`, words: some };
    const similar = nearestWords(word, words, 3, LIKE);
    const near = similar.filter((known) => Math.abs(known.length - word.length) < 2);
    if (near.length > 0) return { says: "Written much the same:", words: near };
    const place = expected(before, groups);
    if (place === null) return { says: "It has no such word.", words: [] };
    if (place === "noun") return { says: "Here comes a noun, such as:", words: NOUNS.map((group) => groups[group][0]) };
    const kind = place === "determiner" ? "word like “the”" : place;
    return { says: `Here comes a ${kind}, such as:`, words: someOf(place, groups, word) };
  }

  // Whether a role, such as "verb → subject", is about this word: the first noun is taken for the subject, the first
  // one after the verb for the place. A position, or a column, is about all words.
  function fits(role, words, at, { verbs, groups }) {
    if (!role.includes(" → ") || role.startsWith("most")) return true;
    const verb = words.findIndex((word) => Object.hasOwn(verbs, word));
    const firstNoun = (from) => words.findIndex((word, i) => i > from && isNoun(word, groups));
    const asks = {
      noun: () => isNoun(words[at], groups), verb: () => at === verb,
      subject: () => verb >= 0 && at === firstNoun(-1),
      place: () => verb >= 0 && at === firstNoun(verb),
    };
    const [from] = role.split(" → ");
    return asks[from]?.() ?? groupOf(words[at], groups) === from;
  }

  // What the grammar says of the verb of a sentence; empty without one.
  function ofVerb(words, { verbs }) {
    const verb = words.find((word) => Object.hasOwn(verbs, word));
    if (!verb) return "";
    const [subject, preposition, place] = verbs[verb];
    return `In this toy English only ${NAMES[subject]} ever ${verb}, and only ${preposition} ${NAMES[place]}.`;
  }

  // All words of the language by kinds: a press on a kind shows its words. kind: the one that is open.
  function drawChips(box, kind, { groups }, onTake) {
    const kinds = Object.keys(groups).map((group) => View.button(`${NAMES[group]} ${groups[group].length}`, () => {
      drawChips(box, group, { groups }, onTake);
      box.querySelector("[aria-pressed=true]").focus();
    }, { "aria-pressed": String(group === kind) }));
    const chips = groups[kind].map((word) => View.button(word, () => onTake(word), { class: "chip" }));
    const row = element("div", { class: "group kinds" }, ...kinds);
    box.replaceChildren(row, element("div", { class: "group", role: "group", "aria-label": NAMES[kind] }, ...chips));
    const open = row.querySelector("[aria-pressed=true]");
    row.scrollLeft = open.offsetLeft - row.offsetLeft - 40; // on a phone the row is longer than the screen
  }

  // The kind of word that a sentence goes on with: after its verb the place that goes with this verb.
  function nextKind(words, { groups, verbs }) {
    const next = words.length ? expected(words.at(-1), groups) : "determiner";
    const verb = words.find((word) => Object.hasOwn(verbs, word));
    if (next === "noun") return verb ? verbs[verb][2] : "animal";
    return next === "verb" && verb ? "determiner" : next ?? "determiner";
  }

  // ---- the sentence as it is typed

  // "The dog, sat." -> ["the", "dog", "sat"], marks aside: no word of the language has one.
  const split = (text) => text.toLowerCase().replace(/[.,!?;:"“”()]/g, " ").split(/\s+/).filter(Boolean);

  const short = (word) => (word.length > SHOWN ? `${word.slice(0, SHOWN)}…` : word);

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
    const known = `the ${language.words.length} words that the models know`;
    const problem = `“${short(first.word)}”${more} ${verb} not among ${known}.`;
    return { problem, unknown, nearest: nearestSentence(words, language) };
  }

  // What is wrong, and for each unknown word others as buttons. What is below stays at the last sentence that was read.
  // nearest: one that it can read.
  let explained = "";
  function explain({ problem = "", unknown = [], nearest = "" }, language, onTake, onRead) {
    const now = JSON.stringify([problem, unknown]);
    if (now === explained) return; // not under the finger that presses one of these words
    explained = now;
    const lines = unknown.slice(0, EXPLAINED).map(({ word, before }) => {
      const { says, words } = instead(word, before, language);
      const buttons = words.slice(0, OFFERED).map((known) => {
        const button = element("button", { type: "button", class: "chip" }, known);
        button.addEventListener("click", () => onTake(word, known));
        return button;
      });
      return element("p", {}, element("b", {}, short(word)), ` ${says} `, ...buttons);
    });
    const whole = nearest ? [element("p", {}, View.button(`take “${nearest}”`, () => onRead(nearest), { class: "main-button" }))] : [];
    byId("message").replaceChildren(...(problem ? [element("p", {}, problem)] : []), ...whole, ...lines);
  }

  // A short sentence of the grammar with as much as can be of what was typed; nothing where nothing fits.
  function nearestSentence(words, { groups, verbs, meanings, words: all }) {
    const isKnown = (word) => all.includes(word) || meaningOf(word, meanings);
    const typed = words.map((word) => (isKnown(word) ? word : nearestWords(word, all, 1, LIKE)[0] ?? word));
    const known = typed.map((word) => groupOf(word, groups));
    const kinds = typed.map((word, i) => known[i] ?? meaningOf(word, meanings));
    const fit = (group) => kinds.includes(group) + known.includes(group);
    const score = ([verb, [subject, , place]]) => 3 * typed.includes(verb) + 2 * fit(subject) + fit(place);
    const best = Object.entries(verbs).reduce((a, b) => (score(b) > score(a) ? b : a));
    if (!score(best)) return "";
    const [verb, [subject, preposition, place]] = best;
    const other = PLACES.find((group) => group !== place && known.includes(group)); // "beside the house"
    function phrase(group) { // the noun of this kind that was typed, with its adjectives
      const at = known.includes(group) ? known.indexOf(group) : kinds.indexOf(group);
      const from = 1 + known.findLastIndex((name, i) => i < at && name !== "adjective");
      const noun = known[at] === group ? typed[at] : groups[group][0];
      return ["the", ...typed.slice(from, Math.max(from, at)), noun].join(" ");
    }
    const beside = other ? ` beside ${phrase(other)}` : "";
    return `${phrase(subject)}${beside} ${verb} ${preposition} ${phrase(place)}`;
  }

  // The typed text with one word replaced by another, wherever it stands.
  const replaced = (text, unknown, word) => split(text).map((part) => (part === unknown ? word : part)).join(" ");

  return {
    isNoun, groupOf, kindOf, nameOfKind, aWordFor, oneOfEachKind, fits, ofVerb, drawChips, nextKind, read, explain, replaced, nearestWords,
  };
})();
