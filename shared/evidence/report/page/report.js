/* The filter of the report page: by verdict, and by words.

   A finding is found by its own words, and by those around it: its script's question, its pictures and their captions.
   A question stays while one of its findings does, and keeps its pictures; one that has pictures alone is found by
   words. Everything is in the page already, and without this file all of it is shown. The state is in the address:

       index.html#verdict=does-not-hold&words=mask+leak
*/
"use strict";

const Filter = (() => {
  const form = document.getElementById("filter");
  const said = document.getElementById("filter-count");

  /* As it is typed and compared: lower case, and √d_k also as sqrt(d_k) or sqrt d_k. */
  function plain(text) {
    return text.toLowerCase().replaceAll("√", "sqrt ").replaceAll(/[()]/g, " ");
  }

  /* Everything a reader may search in; alt is a picture's whole caption. */
  function wordsOf(element) {
    const captions = [...element.querySelectorAll("img")].map((image) => image.alt);
    return plain([element.id, element.textContent, ...captions].join(" "));
  }

  const questions = [...document.querySelectorAll("article")].map((element) => {
    const findings = [...element.querySelectorAll("details[data-verdict]")];
    const around = [...element.querySelectorAll("h3, .pictures")].map(wordsOf).join(" ");
    return {
      element,
      around,
      pictures: element.querySelectorAll("figure").length,
      findings: findings.map((finding) => ({ element: finding, text: `${wordsOf(finding)} ${around}` })),
    };
  });

  function state() {
    return { verdict: form.elements.verdict.value, words: form.elements.words.value.trim() };
  }

  /* Every word, in any order. */
  function holds(text, words) {
    return plain(words).split(/\s+/).every((word) => text.includes(word));
  }

  function isOf(finding, verdict) {
    return verdict === "" || finding.element.dataset.verdict === verdict;
  }

  function counted(number, thing) {
    return `${number} ${thing}${number === 1 ? "" : "s"}`;
  }

  /* Hide what the state leaves out of a question; returns how many pictures are left. */
  function showQuestion(question, { verdict, words }) {
    for (const finding of question.findings) {
      finding.element.hidden = !(isOf(finding, verdict) && holds(finding.text, words));
    }
    const found = question.findings.some((finding) => !finding.element.hidden);
    const picturesAlone = question.findings.length === 0 && verdict === "" && holds(question.around, words);
    question.element.hidden = !found && !picturesAlone;
    return question.element.hidden ? 0 : question.pictures;
  }

  /* A verdict's count follows the words but not the chosen verdict: it says what choosing it would show. */
  function countVerdicts({ words }) {
    const findings = questions.flatMap((question) => question.findings);
    const withWords = findings.filter((finding) => holds(finding.text, words));
    for (const place of document.querySelectorAll("[data-count-verdict]")) {
      place.textContent = withWords.filter((finding) => isOf(finding, place.dataset.countVerdict)).length;
    }
  }

  function countSections() {
    for (const section of document.querySelectorAll("section")) {
      section.hidden = !section.querySelector("article:not([hidden])");
      section.querySelector("[data-count-section]").textContent =
        section.querySelectorAll("details[data-verdict]:not([hidden])").length;
    }
  }

  function show() {
    const pictures = questions.reduce((sum, question) => sum + showQuestion(question, state()), 0);
    countVerdicts(state());
    countSections();
    const left = document.querySelectorAll("article details[data-verdict]:not([hidden])").length;
    said.textContent = `${counted(left, "finding")} and ${counted(pictures, "picture")}`;
  }

  /* An address may name a verdict that does not exist: then all are shown. */
  function set(verdict, words) {
    const radios = [...form.elements.verdict];
    (radios.find((radio) => radio.value === verdict) ?? radios[0]).checked = true;
    form.elements.words.value = words;
    show();
  }

  function start(changed) {
    form.hidden = false;
    form.addEventListener("input", () => {
      show();
      changed();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("filter-clear").addEventListener("click", () => {
      set("", "");
      changed();
    });
    set("", "");
  }

  return { start, state, set, words: form.elements.words };
})();

const Address = (() => {
  /* "#verdict=holds&words=mask" is a state, "#C058" only a place in the page. */
  function write() {
    const kept = Object.entries(Filter.state()).filter(([, value]) => value !== "");
    const page = location.href.split("#")[0];
    history.replaceState(null, "", kept.length ? `${page}#${new URLSearchParams(kept)}` : page);
  }

  /* A link to a finding must reach it: a filter that hides it is given up, and it opens. */
  function open(target) {
    if (target.closest("[hidden]")) {
      Filter.set("", "");
    }
    if (target.tagName === "DETAILS") {
      target.open = true;
    }
    target.scrollIntoView();
  }

  function read() {
    const said = location.hash.slice(1);
    const target = document.getElementById(said);
    if (said.includes("=")) {
      const given = new URLSearchParams(said);
      Filter.set(given.get("verdict") ?? "", given.get("words") ?? "");
      document.getElementById("findings").scrollIntoView();
    } else if (target) {
      open(target);
    }
  }

  return { write, read };
})();

function keyPressed(event) {
  if (event.key === "/" && event.target !== Filter.words) {
    event.preventDefault();
    Filter.words.focus();
  } else if (event.key === "Escape" && Object.values(Filter.state()).some((value) => value !== "")) {
    Filter.set("", "");
    Address.write();
  }
}

Filter.start(Address.write);
document.addEventListener("keydown", keyPressed);
window.addEventListener("hashchange", Address.read);
Address.read();
