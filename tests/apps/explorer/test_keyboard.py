"""Keys and Copy: what Python makes of them here; what they do in a page, in a real Chromium."""

import pytest

from tests.browser import needs_chrome
from workbench.apps.explorer.keyboard import BOX_CLASS, Copy, Keys
from workbench.figures.export.chrome import find_chrome

# A stand-in for the page of JupyterLab: it takes keys at the document, before the widgets could.
PAGE = """
<style>STYLE</style>
<div id=outside tabindex=0>outside</div>
<div id=box class=BOX>
  <div id=here></div>
  <input id=field><input id=check type=checkbox><button id=plain>b</button>
  <div id=handle role=slider tabindex=0>s</div><div id=plot style="height: 50px">p</div>
</div>
<script>
  window.sent = []; window.moved = []; window.model = null;
  document.addEventListener("keydown", event => moved.push(event.key), true);
  document.getElementById("plot").addEventListener("mousedown", event => event.preventDefault());
  window.show = async (script, state, place) => {
    const heard = [];
    window.model = {
      get: name => state[name],
      set: (name, value) => { state[name] = value; heard.forEach(([what, f]) => what.includes(name) && f()); },
      send: content => content.key && sent.push(content.key),
      on: (what, f) => heard.push([what, f]),
      off: (what, f) => heard.splice(heard.findIndex(([, g]) => g === f), 1),
    };
    const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const widget = (await import(url)).default;
    const el = document.createElement("div");
    window.leave = widget.render({ model: window.model, el });
    document.getElementById(place).append(el);
  };
</script>
"""


def test_a_message_of_the_page_becomes_a_key():
    keys = Keys(["ArrowLeft", "p"])
    heard = []
    keys.on_key(heard.append)
    for key in ("p", "ArrowLeft", "q", "ArrowLeft"):
        keys._handle_custom_msg({"key": key}, [])
    assert heard == ["p", "ArrowLeft", "ArrowLeft"]  # q is not listed
    assert keys.pressed == {"key": "ArrowLeft", "count": 3}


def test_a_page_says_that_it_has_put_the_box_up():
    keys = Keys(["p"])
    heard = []
    keys.on_shown(lambda: heard.append("shown"))
    for content in ({"key": "p"}, {"shown": True}, {"key": "p"}):
        keys._handle_custom_msg(content, [])
    assert heard == ["shown"]
    assert keys.pressed["count"] == 2


def test_a_tooltip_is_no_trait_that_fails_in_the_browser():
    copy = Copy("text", "Copy", tooltip="The lines")
    assert (copy.hint, copy.tooltip) == ("The lines", None)


def test_nothing_is_fetched_from_elsewhere():
    for widget in (Keys(["p"]), Copy("text")):
        assert "http" not in widget._esm
        assert "import" not in widget._esm


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chrome(),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            timeout=120_000,
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page at an address that the browser takes for safe, as it does JupyterLab's on this machine."""
    with chromium.new_context() as context:
        context.set_default_timeout(120_000)
        yield _open(context.new_page(), "http://localhost/")


def _open(page, address):
    html = PAGE.replace("STYLE", Keys._css).replace("BOX", BOX_CLASS)
    page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(address)
    return page


def _show(page, widget, **state):
    page.evaluate("([script, state]) => show(script, state, 'here')", [widget._esm, state])


def _keys(page, *names):
    _show(page, Keys(names), shortcuts=names, label="Explorer", alternatives={"view": "a map"}, pressed={})
    page.wait_for_selector("#box[role=group]")


@needs_chrome
def test_a_listed_key_is_taken_before_the_page_around_sees_it(page):
    _keys(page, "ArrowLeft", "p")
    page.focus("#box")
    for key in ("ArrowLeft", "ArrowUp", "p", "Control+p", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("sent") == ["ArrowLeft", "p"]
    assert page.evaluate("moved") == ["ArrowUp", "Control", "p", "Shift", "ArrowLeft"]


@needs_chrome
@pytest.mark.parametrize(
    ("focused", "taken"),
    [
        ("box", True),
        ("plain", True),
        ("check", True),
        ("field", False),
        ("handle", False),
        ("outside", False),
    ],
)
def test_fields_and_sliders_keep_their_keys_and_the_rest_of_the_page_too(page, focused, taken):
    _keys(page, "ArrowRight")
    page.focus(f"#{focused}")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[sent, moved]") == ([["ArrowRight"], []] if taken else [[], ["ArrowRight"]])


@needs_chrome
def test_a_click_on_a_plot_brings_the_focus_and_the_focus_shows_only_to_those_who_came_by_keys(page):
    _keys(page, "ArrowRight")
    page.click("#plot")
    page.wait_for_function("document.activeElement.id === 'box'")
    outline = "getComputedStyle(document.getElementById('box')).outlineStyle"
    assert page.evaluate(outline) == "none"
    page.click("#outside")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "box"
    assert page.evaluate(outline) == "solid"
    assert page.get_attribute("#box", "aria-keyshortcuts") == "ArrowRight"


@needs_chrome
def test_a_figure_is_described_to_a_screen_reader(page):
    page.evaluate("document.getElementById('plot').classList.add('view')")
    _keys(page, "ArrowRight")
    assert page.get_attribute("#plot", "role") == "figure"
    assert page.get_attribute("#plot", "aria-label") == "a map"


@needs_chrome
def test_a_slider_is_called_by_its_description_whenever_it_comes(page):
    def add(words):
        page.evaluate(
            """words => {
              const slider = document.createElement("div"), label = document.createElement("label");
              slider.className = "widget-slider";
              label.textContent = words;
              slider.append(label, Object.assign(document.createElement("p"), { role: "slider", tabIndex: 0 }));
              document.getElementById("box").append(slider);
            }""",
            words,
        )

    add("layer")
    _keys(page, "ArrowRight")
    add("head")
    for words in ("layer", "head"):
        page.get_by_role("slider", name=words, exact=True).wait_for(state="attached")


@needs_chrome
def test_a_key_held_down_waits_for_its_answer_and_presses_do_not(page):
    _keys(page, "ArrowRight")
    page.focus("#box")
    for _ in range(4):  # without a release these are repeats
        page.keyboard.down("ArrowRight")
    assert page.evaluate("sent.length") == 1
    page.evaluate("model.set('pressed', {key: 'ArrowRight', count: 1})")
    page.keyboard.down("ArrowRight")
    assert page.evaluate("sent.length") == 2
    page.keyboard.up("ArrowRight")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("sent.length") == 5


@needs_chrome
def test_a_widget_that_leaves_the_page_leaves_its_keys(page):
    _keys(page, "ArrowRight")
    page.evaluate("leave()")
    page.focus("#box")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[sent, moved]") == [[], ["ArrowRight"]]


@needs_chrome
@pytest.mark.parametrize("address", ["http://localhost/", "http://a-server.example/"])
def test_the_text_is_on_the_clipboard_and_the_button_says_so_for_two_seconds(chromium, address):
    with chromium.new_context() as context:
        context.set_default_timeout(120_000)
        page = _open(context.new_page(), address)
        page.clock.install()
        page.clock.pause_at(page.evaluate("Date.now()") + 3_600_000)  # the two seconds pass when told to
        assert page.evaluate("isSecureContext") == ("localhost" in address)
        text = "explorer.open({'layer': 2})\n# <b>as it is</b>"
        _show(page, Copy(text), text=text, label="Copy as code", hint="The lines that draw this view")
        page.get_by_role("button", name="Copy as code").click()
        said = page.get_by_role("status")
        said.filter(has_text="copied").wait_for()
        page.evaluate("document.getElementById('field').outerHTML = '<textarea id=field></textarea>'")
        page.focus("#field")
        page.keyboard.press("Control+v")
        assert page.input_value("#field") == text
        page.clock.run_for(1999)
        assert said.text_content() == "copied"
        page.clock.run_for(1)
        assert said.text_content() == ""


@needs_chrome
def test_a_browser_that_forbids_copying_is_not_said_to_have_copied(page):
    page.evaluate(
        "navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false"
    )
    _show(page, Copy("text"), text="text", label="Copy", hint="")
    page.get_by_role("button", name="Copy").click()
    page.wait_for_function("document.querySelector('[role=status]').textContent.startsWith('not copied')")
