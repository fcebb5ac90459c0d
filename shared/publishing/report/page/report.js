/* The filter of the report page: by verdict, and by words.

   A finding is found by its own words, and by those around it: its script's question, its pictures and their captions.
   A question stays while one of its findings does, and keeps its pictures; one that has pictures alone is found by
   words. Everything is in the page already, and without this file all of it is shown. The state is in the address:

       index.html#verdict=does-not-hold&words=mask+leak
*/
"use strict";

const form = document.getElementById("filter");
const chosen = form.elements.verdict;
const typed = form.elements.words;

/* As it is typed and compared: lower case, and √d_k also as sqrt(d_k) or sqrt d_k. */
function plain(text) {
  return text.toLowerCase().replaceAll("√", "sqrt ").replaceAll(/[()]/g, " ");
}

/* Everything a reader may search in; alt is a picture's whole caption. */
function wordsOf(element) {
  const captions = [...element.querySelectorAll("img")].map((image) => image.alt);
  return plain([element.id, element.textContent, ...captions].join(" "));
}

const questions = [...document.querySelectorAll("article")];
const findings = [...document.querySelectorAll("[data-verdict]")];
const around = (question) => [...question.querySelectorAll("h3, .pictures")].map(wordsOf).join(" ");
const texts = new Map(questions.map((question) => [question, around(question)]));
for (const finding of findings) {
  texts.set(finding, `${wordsOf(finding)} ${texts.get(finding.closest("article"))}`);
}

/* Every word, in any order. */
function hasWords(element) {
  return plain(typed.value).split(/\s+/).every((word) => texts.get(element).includes(word));
}

function isOf(finding, verdict) {
  return verdict === "" || finding.dataset.verdict === verdict;
}

function stays(question) {
  const own = findings.filter((finding) => question.contains(finding));
  return own.length ? own.some((finding) => !finding.hidden) : chosen.value === "" && hasWords(question);
}

function show() {
  for (const finding of findings) {
    finding.hidden = !(isOf(finding, chosen.value) && hasWords(finding));
  }
  for (const question of questions) {
    question.hidden = !stays(question);
  }
  for (const section of document.querySelectorAll("section")) {
    section.hidden = !section.querySelector("article:not([hidden])");
  }
  /* A verdict's count follows the words but not the chosen verdict: it says what choosing it would show. */
  const withWords = findings.filter(hasWords);
  for (const place of document.querySelectorAll("[data-count-verdict]")) {
    place.textContent = withWords.filter((finding) => isOf(finding, place.dataset.countVerdict)).length;
  }
  const pictures = document.querySelectorAll("article:not([hidden]) .pictures li").length;
  document.getElementById("filter-count").textContent =
    `shown: ${findings.filter((finding) => !finding.hidden).length} findings, ${pictures} pictures`;
}

/* An address may name a verdict that does not exist: then all are shown. */
function set(verdict, words) {
  chosen.value = "";
  chosen.value = verdict;
  typed.value = words;
  show();
}

/* "#verdict=holds&words=mask" is a state, "#C058" only a place in the page. */
function writeAddress() {
  const kept = Object.entries({ verdict: chosen.value, words: typed.value.trim() }).filter(([, value]) => value !== "");
  const page = location.href.split("#")[0];
  history.replaceState(null, "", kept.length ? `${page}#${new URLSearchParams(kept)}` : page);
}

/* A link to a finding must reach it: a filter that hides it is given up, and it opens. */
function reach(target) {
  if (target.closest("[hidden]")) {
    set("", "");
  }
  target.open = true;
  target.scrollIntoView();
}

function readAddress() {
  const said = location.hash.slice(1);
  const target = document.getElementById(said);
  if (said.includes("=")) {
    const given = new URLSearchParams(said);
    set(given.get("verdict") ?? "", given.get("words") ?? "");
    document.getElementById("findings").scrollIntoView();
  } else if (target) {
    reach(target);
  }
}

function filter() {
  show();
  writeAddress();
}

function clear() {
  set("", "");
  writeAddress();
}

function keyPressed(event) {
  if (event.key === "/" && event.target !== typed) {
    event.preventDefault();
    typed.focus();
  } else if (event.key === "Escape" && (chosen.value || typed.value)) {
    clear();
  }
}

form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("filter-clear").addEventListener("click", clear);
document.addEventListener("keydown", keyPressed);
window.addEventListener("hashchange", readAddress);
show();
readAddress();
