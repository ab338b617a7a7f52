// Takes in what the server sends: parts of the page by their id, and charts.
function follow(path) {
  const fault = document.getElementById("fault");
  const say = words => { fault.hidden = !words; fault.textContent = words; };
  const events = new EventSource(path);
  events.onerror = () => say("cprjob ui does not answer; the page shows what was known last.");
  events.onopen = () => say("");
  events.onmessage = event => {
    const { fault: words, title, charts, ...parts } = JSON.parse(event.data);
    say(words || "");
    if (title) document.title = title;
    for (const [id, html] of Object.entries(parts)) document.getElementById(id).innerHTML = html;
    if (charts) draw(charts);
  };
}
