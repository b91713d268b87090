//! A reader of Python source for what runs it: the module and variable of a web application, and
//! whether a script's server takes one request at a time. It goes by lines, without parsing: what
//! begins at the left margin is what a module offers.

use crate::source::SourceTree;

/// Modules that hold the application, the likeliest first.
const LIKELY: &[&str] =
    &["wsgi", "asgi", "app", "main", "application", "server", "run", "__init__"];

/// The place where a server finds the application: `package.module:variable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callable {
    pub file: String,
    /// The directory to be put on the module path, if it is not the root.
    pub directory: Option<&'static str>,
    pub module: String,
    pub name: String,
    /// Whether `name` is a function that makes the application.
    pub factory: bool,
}

impl Callable {
    pub fn target(&self) -> String {
        format!("{}:{}", self.module, self.name)
    }
}

/// Finds the application made by calling one of `constructors` (`Flask`), likeliest file first.
pub fn find_made_by(tree: &SourceTree, constructors: &[&str]) -> Option<Callable> {
    let variable = |text: &str| text.lines().find_map(|line| assigned(line, constructors));
    find(tree, |text| variable(text).map(|name| (name, false))).or_else(|| {
        find(tree, |text| {
            let calls = |constructor: &&str| text.contains(&format!("{constructor}("));
            let factory = text.lines().find_map(factory_name)?;
            constructors.iter().any(calls).then_some((factory, true))
        })
    })
}

/// Finds a WSGI callable without a framework: a function of an environment and `start_response`.
pub fn find_wsgi_function(tree: &SourceTree) -> Option<Callable> {
    find(tree, |text| {
        let defined = |line: &str| {
            let (name, arguments) = line.strip_prefix("def ")?.split_once('(')?;
            let arguments: Vec<&str> = arguments.split(')').next()?.split(',').collect();
            let two = arguments.len() == 2 && arguments[1].trim().starts_with("start_response");
            two.then(|| name.trim().to_owned())
        };
        let named = |line: &str| {
            let (name, value) = line.split_once('=')?;
            let is_it = name.trim_end() == "application" && !value.starts_with('=');
            is_it.then(|| "application".to_owned())
        };
        // A name that servers look for by themselves counts, or any function of the right form.
        let wsgi_words = text.contains("wsgi") || text.contains("WSGI");
        let from_names = || wsgi_words.then(|| text.lines().find_map(named)).flatten();
        from_names().or_else(|| text.lines().find_map(defined)).map(|name| (name, false))
    })
}

fn find(tree: &SourceTree, look: impl Fn(&str) -> Option<(String, bool)>) -> Option<Callable> {
    let mut found: Vec<(usize, usize, Callable)> = Vec::new();
    for (path, file) in tree.named("*.py") {
        let Some(text) = &file.text else { continue };
        let Some((module, directory)) = module_of(path) else { continue };
        let Some((name, factory)) = look(text) else { continue };
        let depth = path.matches('/').count();
        let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".py");
        let rank = LIKELY.iter().position(|likely| *likely == stem).unwrap_or(LIKELY.len());
        let callable = Callable { file: path.into(), directory, module, name, factory };
        found.push((depth, rank, callable));
    }
    found.sort_by_key(|(depth, rank, callable)| (*depth, *rank, callable.file.clone()));
    found.into_iter().next().map(|(_, _, callable)| callable)
}

/// Returns the module of a path: `src/shop/web.py` is module `shop.web` of directory `src`; `None`
/// for tests and what is no module.
fn module_of(path: &str) -> Option<(String, Option<&'static str>)> {
    let (path, directory) = match path.strip_prefix("src/") {
        Some(inner) => (inner, Some("src")),
        None => (path, None),
    };
    let mut names: Vec<&str> = path.strip_suffix(".py")?.split('/').collect();
    let other = |name: &&str| {
        name.starts_with("test") || matches!(*name, "docs" | "examples" | "setup" | "conftest")
    };
    if names.iter().any(other) {
        return None;
    }
    if names.last() == Some(&"__init__") {
        names.pop();
    }
    let identifier = |name: &str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    (!names.is_empty() && names.iter().all(|name| identifier(name)))
        .then(|| (names.join("."), directory))
}

/// Returns the variable of `app = Flask(…)`, `app: Flask = flask.Flask(…)` at the left margin.
fn assigned(line: &str, constructors: &[&str]) -> Option<String> {
    let (left, right) = line.split_once('=')?;
    let name = left.split(':').next()?.trim_end();
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let called = right.trim_start().split('(').next()?;
    let called = called.rsplit('.').next()?;
    let made = right.contains('(') && constructors.contains(&called.trim_end());
    (plain && made).then(|| name.to_owned())
}

fn factory_name(line: &str) -> Option<String> {
    let name = line.strip_prefix("def ")?.split('(').next()?.trim();
    matches!(name, "create_app" | "make_app" | "build_app" | "get_app").then(|| name.to_owned())
}

/// Returns the requests that a script's own server takes at a time: 1 for the serial servers of the
/// standard library, `None` if it starts threads or is not one of them.
pub fn script_concurrency(tree: &SourceTree, script: &str) -> Option<u32> {
    const PARALLEL: &[&str] = &[
        "ThreadingHTTPServer",
        "ThreadingMixIn",
        "ThreadingTCPServer",
        "ThreadingWSGIServer",
        "ForkingMixIn",
        "ForkingTCPServer",
        "asyncio",
        "threaded=True",
    ];
    const SERIAL: &[&str] =
        &["HTTPServer(", "WSGIServer(", "make_server(", "TCPServer(", "simple_server"];
    let text = tree.text(script)?;
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    (has(SERIAL) && !has(PARALLEL)).then_some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Option<(&str, bool)>) {
        let found = find_made_by(&SourceTree::from_pairs(files.iter().copied()), &["Flask"]);
        let found = found.map(|callable| (callable.target(), callable.factory));
        let found = found.as_ref().map(|(target, factory)| (target.as_str(), *factory));
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn variables_are_found_by_reading() {
        check(&[("web.py", "shop = Flask(__name__)\n")], Some(("web:shop", false)));
        check(&[("a.py", "app: Flask = flask.Flask(\n")], Some(("a:app", false)));
        check(&[("a.py", "    app = Flask(__name__)\n")], None);
        check(&[("a.py", "app = FlaskLike(x)\nif a == Flask(b): pass\n")], None);
        let two =
            [("app.py", "app = Flask(1)"), ("zoo.py", "z = Flask(1)"), ("abc.py", "y = Flask(1)")];
        check(&two, Some(("app:app", false)));
        check(&[("pkg/__init__.py", "app = Flask(1)")], Some(("pkg:app", false)));
        check(&[("src/pkg/web.py", "app = Flask(1)")], Some(("pkg.web:app", false)));
        check(&[("tests/test_a.py", "app = Flask(1)")], None);
        let factory = "def create_app():\n    app = Flask(__name__)\n";
        check(&[("pkg/__init__.py", factory)], Some(("pkg:create_app", true)));
        check(&[("my-app.py", "app = Flask(1)")], None);
    }

    #[test]
    fn wsgi_functions_are_found() {
        for (text, expected) in [
            ("def hello(environ, start_response):\n", Some("hello")),
            ("def app(env, start_response): pass", Some("app")),
            ("def f(a, b):\n", None),
            ("import wsgi_thing\napplication = wsgi_thing.get()\n", Some("application")),
            ("application = 3\n", None),
        ] {
            let tree = SourceTree::from_pairs([("hello.py", text)]);
            let found = find_wsgi_function(&tree).map(|callable| callable.name);
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn serial_servers_are_told_from_threaded_ones() {
        for (text, expected) in [
            ("HTTPServer((host, port), Hello).serve_forever()", Some(1)),
            ("ThreadingHTTPServer((host, port), Hello).serve_forever()", None),
            ("class S(ThreadingMixIn, HTTPServer): pass\nS()\nHTTPServer(", None),
            ("from wsgiref.simple_server import make_server\nmake_server('', 1, app)", Some(1)),
            ("import tornado", None),
        ] {
            let tree = SourceTree::from_pairs([("app.py", text)]);
            assert_eq!(script_concurrency(&tree, "app.py"), expected, "{text}");
        }
    }
}
