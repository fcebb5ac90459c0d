/* The filter of the report page: by verdict, and by words in a finding's claim, id or script.

   Everything is in the page already, and without this file all of it is shown. The filter only hides, counts what is
   left, and keeps its state in the address, so that a view can be linked:

       index.html#verdict=does-not-hold&words=mask+leak
*/
"use strict";

const form = document.getElementById("filter");
const shownCount = document.getElementById("filter-count");
const findings = [...document.querySelectorAll("article")];

/* Everything a reader may search in, lower case, one text for each finding. */
const textOf = new Map(findings.map((finding) => [finding, searchedText(finding).toLowerCase()]));

function searchedText(finding) {
  return [finding.id, finding.querySelector(".claim").textContent, finding.dataset.script].join(" ");
}

function filterState() {
  return { verdict: form.elements.verdict.value, words: form.elements.words.value.trim() };
}

function isFiltering(state) {
  return state.verdict !== "" || state.words !== "";
}

/* A finding must hold every word, in any order. */
function hasWords(finding, words) {
  return words.toLowerCase().split(/\s+/).every((word) => textOf.get(finding).includes(word));
}

function plural(count) {
  return count === 1 ? "1 finding" : `${count} findings`;
}

/* Hide what the state leaves out and write every count anew: total, for each verdict, for each section. */
function show(state) {
  const filtering = isFiltering(state);
  const withWords = findings.filter((finding) => hasWords(finding, state.words));
  for (const finding of findings) {
    finding.hidden = true;
  }
  const left = withWords.filter((finding) => state.verdict === "" || finding.dataset.verdict === state.verdict);
  for (const finding of left) {
    finding.hidden = false;
  }
  /* A verdict's count follows the words but not the chosen verdict: it says what choosing it would show. */
  for (const count of document.querySelectorAll("[data-count-verdict]")) {
    const verdict = count.dataset.countVerdict;
    count.textContent = withWords.filter((finding) => verdict === "" || finding.dataset.verdict === verdict).length;
  }
  for (const section of document.querySelectorAll("section")) {
    const count = section.querySelectorAll("article:not([hidden])").length;
    section.hidden = filtering && count === 0;
    for (const place of document.querySelectorAll(`[data-count-section="${section.id}"]`)) {
      place.textContent = count;
    }
  }
  /* Pictures have no verdict: they step aside, so that the findings that are left stand together. */
  document.body.classList.toggle("filtering", filtering);
  shownCount.textContent = filtering
    ? `${left.length} of ${plural(findings.length)}, without the pictures`
    : plural(findings.length);
}

/* "#verdict=holds&words=mask" is a state, "#C058" only a place in the page. */
function stateInAddress() {
  const address = location.hash.slice(1);
  return address.includes("=") ? new URLSearchParams(address) : null;
}

function writeAddress(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== "");
  const page = location.href.split("#")[0];
  history.replaceState(null, "", kept.length ? `${page}#${new URLSearchParams(kept)}` : page);
}

/* An address may name a verdict that does not exist: then all are shown. */
function setForm(verdict, words) {
  const radios = [...form.elements.verdict];
  const chosen = radios.find((radio) => radio.value === verdict) ?? radios[0];
  chosen.checked = true;
  form.elements.words.value = words;
}

function filterChanged() {
  const state = filterState();
  show(state);
  writeAddress(state);
}

/* A link to a finding must reach it, so a filter that hides it is given up. */
function addressChanged() {
  const state = stateInAddress();
  const target = document.querySelector(":target");
  if (state) {
    setForm(state.get("verdict") ?? "", state.get("words") ?? "");
    show(filterState());
  } else if (target?.closest("[hidden]")) {
    setForm("", "");
    show(filterState());
    target.scrollIntoView();
  }
}

function clearFilter() {
  setForm("", "");
  filterChanged();
}

function keyPressed(event) {
  const typing = event.target === form.elements.words;
  if (event.key === "/" && !typing) {
    event.preventDefault();
    form.elements.words.focus();
  } else if (event.key === "Escape" && isFiltering(filterState())) {
    clearFilter();
  }
}

form.hidden = false;
form.addEventListener("input", filterChanged);
form.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("filter-clear").addEventListener("click", clearFilter);
document.addEventListener("keydown", keyPressed);
window.addEventListener("hashchange", addressChanged);
show(filterState());
addressChanged();
