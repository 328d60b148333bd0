
// What pages that are served have in addition: they change while they are open.
const notice = document.getElementById("notice");

function tell(text) {
  notice.textContent = text;
  notice.hidden = !text;
}

function csrfToken() {
  return document.querySelector("meta[name=csrf-token]").content;
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
}

function follow(part) {
  const stream = new EventSource(part.dataset.live);
  stream.onopen = () => tell("");
  stream.onerror = () => tell(stream.readyState === EventSource.CLOSED
    ? "No longer followed: winnow ui has ended, or was started again and printed a new address."
    : "The connection is lost; trying again.");
  stream.onmessage = event => {
    const news = JSON.parse(event.data);
    if (news.reload) reloadPart(part);
    for (const [name, text] of Object.entries(news.facts ?? {})) showFact(part, name, text);
    if (news.rows?.length) drawn.then(() => plots.forEach(plot => addRows(plot, news.rows)));
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
  tell("Asked; waiting for the answer.");
  const headers = {"content-type": "application/json", "x-csrf-token": csrfToken()};
  try {
    const answer = await fetch(button.dataset.post, {method: "POST", headers, body: "{}"});
    const isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
    tell(isJson ? (await answer.json()).note : await answer.text());
    if (answer.ok) setTimeout(() => location.reload(), 1500);
  } catch {
    tell("The connection is lost; nothing is known of the outcome.");
  }
  button.disabled = false;
});
