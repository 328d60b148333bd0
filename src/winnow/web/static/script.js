
// What pages that are served have in addition: they change while they are open.
const notice = document.getElementById("notice");

function tell(text) {
  notice.textContent = text;
  notice.hidden = !text;
}

function csrfToken() {
  return document.querySelector("meta[name=csrf-token]")?.content ?? "";
}

// Send something to the server as this page, and tell what it says.
async function send(address, content) {
  tell("Asked; waiting for the answer.");
  const headers = {"content-type": "application/json", "x-csrf-token": csrfToken()};
  try {
    const answer = await fetch(address, {method: "POST", headers, body: JSON.stringify(content)});
    const isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
    const told = isJson ? await answer.json() : {note: await answer.text()};
    tell(told.note);
    return answer.ok ? told : null;
  } catch {
    tell("The connection is lost; nothing is known of the outcome.");
    return null;
  }
}

function offerFile(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// Put the newly rendered part of this page in the place of the one with the same id; ticked boxes stay ticked.
async function reloadPart(part) {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = document.adoptNode(page.getElementById(part.id));
  const ticked = new Set([...part.querySelectorAll("input:checked")].map(box => box.value));
  fresh.querySelectorAll("input[type=checkbox]").forEach(box => { box.checked = ticked.has(box.value); });
  const words = part.querySelector("input[type=search]")?.value ?? "";
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll(".searchable").forEach(makeSearchable);
  const field = part.querySelector("input[type=search]");
  if (field && words) {
    field.value = words;
    field.dispatchEvent(new Event("input"));
  }
  document.querySelector("header p").textContent = page.querySelector("header p").textContent;
}

function showFact(part, name, text) {
  const place = [...part.querySelectorAll("[data-fact]")].find(each => each.dataset.fact === name);
  if (place) place.textContent = text;
}

// New rows of metrics.csv, at the ends of those lines that say which column they show.
function addRows(plot, rows) {
  const along = plot.layout.meta?.x, per = plot.layout.meta?.per;
  if (!along) return;
  plot.data.forEach((line, place) => {
    const known = rows.filter(row => typeof row[line.meta] === "number");
    if (!known.length) return;
    const x = known.map(row => row[along] / per), y = known.map(row => row[line.meta]);
    Plotly.extendTraces(plot, {x: [x], y: [y]}, [place]);
  });
  const {dtick, range} = plot.layout.xaxis;
  if (dtick === 1 && range[1] - range[0] > plot.layout.meta.ticks_up_to) Plotly.relayout(plot, {"xaxis.dtick": null});
}

// Sections of a run's page, but for the curves that grow by themselves: drawn anew as rounds are committed, at most so often
// that the server spends a twentieth of its time on it.
const FRESH_SECONDS = 5, FRESH_SHARE = 20, sources = new Map();
let freshAt = 0, freshPlanned = false;

function heading(section) {
  return section.querySelector("h2")?.textContent;
}

function growsByItself(section) {
  return [...section.querySelectorAll(".plot")].some(plot => plot.layout?.meta?.x);
}

function replaceSection(old, fresh) {
  if (sources.get(heading(fresh)) === fresh.outerHTML) return;
  sources.set(heading(fresh), fresh.outerHTML);
  const opened = [...old.querySelectorAll("details")].map(each => each.open);
  const words = [...old.querySelectorAll("input[type=search]")].map(each => each.value);
  fresh.style.minHeight = `${old.offsetHeight}px`;  // the page does not jump while figures are drawn
  old.replaceWith(fresh);
  fresh.querySelectorAll("details").forEach((each, place) => { each.open = opened[place] ?? false; });
  fresh.querySelectorAll(".searchable").forEach(makeSearchable);
  fresh.querySelectorAll("input[type=search]").forEach((field, place) => {
    field.value = words[place] ?? "";
    field.dispatchEvent(new Event("input"));
  });
  const added = [...fresh.querySelectorAll(".plot")];
  plots.splice(0, plots.length, ...plots.filter(plot => plot.isConnected), ...added);
  Promise.all(added.map(draw)).then(() => { fresh.style.minHeight = ""; });
}

async function refreshSections() {
  const began = performance.now(), answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const shown = new Map([...document.querySelectorAll("main > section")].map(each => [heading(each), each]));
  let before = null;
  for (const each of page.querySelectorAll("main > section")) {
    const old = shown.get(heading(each));
    if (old && growsByItself(old)) { before = old; continue; }
    const fresh = document.adoptNode(each);
    if (old) replaceSection(old, fresh);
    else if (before) { before.after(fresh); fresh.querySelectorAll(".plot").forEach(plot => { plots.push(plot); draw(plot); }); }
    before = fresh.isConnected ? fresh : old;
  }
  freshAt = performance.now() + FRESH_SHARE * (freshAt ? performance.now() - began : 0);
}

function planRefresh() {
  if (freshPlanned) return;
  freshPlanned = true;
  const wait = Math.max(0, freshAt + 1000 * FRESH_SECONDS - performance.now());
  setTimeout(async () => {
    while (document.hidden) await new Promise(done => document.addEventListener("visibilitychange", done, {once: true}));
    await drawn;
    await refreshSections().catch(() => {});
    freshPlanned = false;
  }, wait);
}

// A login that the server no longer knows: once it is there again, and lets this browser in, the page is loaded anew.
async function waitForServer() {
  for (;;) {
    await new Promise(done => setTimeout(done, 2000));
    const answer = await fetch(location.href).catch(() => null);
    if (answer?.ok) return location.reload();
    tell(answer ? "No longer logged in: open the address that was printed, or log in again."
      : "The server is away; this page comes back with it.");
  }
}

function follow(part) {
  const stream = new EventSource(part.dataset.live);
  let lost = false;
  stream.onopen = () => {
    tell("");
    if (lost && part.id) reloadPart(part);  // what changed meanwhile
    lost = false;
  };
  stream.onerror = () => {
    lost = true;
    tell("The connection is lost; trying again.");
    if (stream.readyState === EventSource.CLOSED) waitForServer();
  };
  stream.onmessage = event => {
    const news = JSON.parse(event.data);
    if (news.reload) reloadPart(part);
    for (const [name, text] of Object.entries(news.facts ?? {})) showFact(part, name, text);
    if (news.rows?.length) {
      drawn.then(() => plots.forEach(plot => addRows(plot, news.rows)));
      planRefresh();
    }
    if (news.ended) stream.close();
    if (news.restart) location.reload();
  };
}

document.querySelectorAll("[data-live]").forEach(follow);

// Buttons that change something: the reader confirms, the server decides, and its answer is told.
document.addEventListener("click", async event => {
  const button = event.target.closest("button[data-post]");
  if (!button || !confirm(button.dataset.confirm)) return;
  button.disabled = true;
  if (await send(button.dataset.post, {})) setTimeout(() => location.reload(), 1500);
  button.disabled = false;
});

document.addEventListener("submit", async event => {
  const form = event.target.closest("form[data-post]");
  if (!form) return;
  event.preventDefault();
  const button = form.querySelector("button[type=submit]");
  button.disabled = true;  // pressed twice, the second answer would hide the first
  const told = await send(form.dataset.post, Object.fromEntries(new FormData(form)));
  button.disabled = false;
  if (told?.file) offerFile(told.file, told.content);
  if (told) form.reset();
  notice.scrollIntoView({block: "center"});
});

// A file that is chosen is put into the field beside it, for the reader to see what is sent.
document.addEventListener("change", async event => {
  const field = event.target.closest("form")?.elements[event.target.dataset.into];
  if (field && event.target.files.length) field.value = (await event.target.files[0].slice(0, field.maxLength).text());
});
