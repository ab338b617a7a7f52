// Applies messages of the server: parts of the page by their id, and charts.
function follow(path) {
  const fault = document.getElementById("fault");
  const showFault = text => { fault.hidden = !text; fault.textContent = text; };
  const events = new EventSource(path);
  events.onerror = () => showFault("cprjob ui does not answer; the page shows the last state.");
  events.onopen = () => showFault("");
  events.onmessage = event => {
    const { fault: text, title, charts, ...parts } = JSON.parse(event.data);
    showFault(text || "");
    if (title) document.title = title;
    for (const [id, html] of Object.entries(parts)) document.getElementById(id).innerHTML = html;
    if (charts) draw(charts);
  };
}
