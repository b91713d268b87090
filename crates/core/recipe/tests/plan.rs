//! Tests of what a push of a whole tree leads to: precedence, combination and messages.

use model::ProcessType;
use model::application::{RequestKey, RolloutMode, STICKY_BALANCE, Settings};
use proptest::prelude::*;
use recipe_core::detect::{DetectError, Plan, plan_release};
use recipe_core::source::SourceTree;

const REFERENCE: &str = include_str!("../../../../cortex.example.toml");
const MANAGE: &str =
    "import django\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'a.settings')\n";

fn tree(files: &[(&str, &str)]) -> SourceTree {
    SourceTree::from_pairs(files.iter().copied())
}

fn plan(files: &[(&str, &str)]) -> Plan {
    plan_release(&tree(files), None, "test").unwrap_or_else(|error| panic!("{files:?}: {error}"))
}

fn message(files: &[(&str, &str)], forced: Option<&str>) -> String {
    plan_release(&tree(files), forced, "test").unwrap_err().to_string()
}

fn process<'a>(plan: &'a Plan, name: &str) -> &'a model::release::ProcessRecipe {
    &plan.recipe.processes[&name.parse::<ProcessType>().unwrap()]
}

#[test]
fn every_framework_is_told_from_the_others() {
    let rails = ("config/application.rb", "class A < Rails::Application");
    let cargo = ("Cargo.toml", "[package]\nname = \"a\"\n");
    let package = ("package.json", "{\"scripts\": {\"start\": \"node a.js\"}}");
    for (files, expected) in [
        (&[("Gemfile", ""), ("config.ru", ""), rails, package][..], "rails"),
        (&[("Gemfile", ""), ("config.ru", ""), package], "rack"),
        (&[("manage.py", MANAGE), ("a/settings.py", ""), ("a/wsgi.py", ""), package], "django"),
        (&[("app.py", "app = Flask(__name__)\n"), package], "flask"),
        (&[("main.py", "app = FastAPI()\n")], "fastapi"),
        (
            &[("production.ini", "use = egg:a"), ("setup.py", ""), ("a/b.py", ""), package],
            "pyramid",
        ),
        (&[("package.json", "{\"dependencies\": {\"next\": \"14\"}}")], "nextjs"),
        (&[("go.mod", "module a"), ("main.go", "package main"), package], "go"),
        (&[cargo, ("src/main.rs", "fn main() {}"), package], "rust"),
        (&[("public/index.php", ""), ("composer.json", "{}"), package], "php"),
        (&[("index.php", ""), ("index.html", "")], "php"),
        (&[("pom.xml", "<parent>spring-boot</parent><mainClass>A</mainClass>"), package], "java"),
        (&[("a.cabal", "executable a\n  build-depends: yesod"), ("index.html", "")], "haskell"),
        (&[("mix.exs", "{:phoenix, \"~> 1\"}"), ("assets/package.json", "{}")], "phoenix"),
        (&[("hello.py", "def app(environ, start_response):\n")], "python"),
        (&[("anything.py", "serve_forever()")], "python"),
        (&[package, ("tool.py", ""), ("index.html", "")], "node"),
        (&[package, ("requirements.txt", "mkdocs\n")], "node"),
        (&[("package.json", "{}"), ("index.html", "")], "static"),
        (&[("Procfile", "web: ./run"), ("index.html", "")], "procfile"),
        (&[("public/index.html", "")], "static"),
        (&[("Staticfile", "root: site\n"), ("site/a.html", "")], "static"),
    ] {
        let found = plan(files);
        assert_eq!(found.recipe.framework, expected, "{files:?}");
        let file = found.recipe.decided_by.split(' ').next().unwrap();
        assert!(files.iter().any(|(path, _)| *path == file), "{}", found.recipe.decided_by);
    }
}

#[test]
fn the_hello_example_is_serial_and_needs_no_build() {
    let code = include_str!("../../../../examples/hello/app.py");
    let settings = include_str!("../../../../examples/hello/cortex.toml");
    let plan = plan(&[("app.py", code), ("cortex.toml", settings)]);
    let web = process(&plan, "web");
    assert_eq!(web.command, "python3 app.py");
    assert_eq!((web.concurrency, web.default_count), (Some(1), 4));
    assert!(plan.recipe.build.is_empty() && plan.recipe.release.is_empty());
}

#[test]
fn a_procfile_keeps_the_frameworks_build() {
    let plan = plan(&[
        ("manage.py", MANAGE),
        ("a/settings.py", "DATABASES = {}\n"),
        ("a/wsgi.py", ""),
        ("requirements.txt", "django\n"),
        ("Procfile", "web: gunicorn a.wsgi\nworker: python manage.py work\nrelease: ./mine\n"),
    ]);
    assert_eq!(plan.recipe.framework, "django");
    assert!(plan.recipe.build.iter().any(|step| step.command.contains("requirements.txt")));
    let releases: Vec<&str> = plan.recipe.release.iter().map(|s| s.command.as_str()).collect();
    assert_eq!(releases, ["./mine"]);
    assert_eq!(process(&plan, "web").command, "gunicorn a.wsgi");
    // gunicorn without options answers one request at a time.
    assert_eq!(process(&plan, "web").concurrency, Some(1));
    assert_eq!(process(&plan, "worker").default_count, 1);
    assert_eq!(plan.recipe.path, [".venv/bin"]);
    let decided = "manage.py names Django; the Procfile says what runs";
    assert_eq!(plan.recipe.decided_by, decided);
    let notes = plan.recipe.notes.join("\n");
    assert!(notes.contains("Procfile: its 'web' replaces"), "{notes}");
    assert!(notes.contains("'release' replaces: Migrating the database"), "{notes}");
}

#[test]
fn odd_file_names_stay_one_word() {
    let plan = plan(&[("it's odd $(x).py", "PORT")]);
    assert_eq!(process(&plan, "web").command, "python3 'it'\\''s odd $(x).py'");
}

/// Debian has no program `python`, but people's Procfiles name it.
#[test]
fn a_procfile_that_calls_python_finds_it() {
    let with = |command: &str| plan(&[("app.py", "PORT"), ("Procfile", command)]).recipe;
    assert_eq!(with("web: python app.py").path, [".venv/bin"]);
    assert!(with("web: python app.py").build[0].command.contains("venv"));
    assert!(with("web: python3 app.py").build.is_empty());
}

#[test]
fn concurrency_follows_the_command() {
    for (command, expected) in [
        ("gunicorn a:b", Some(1)),
        ("gunicorn -w 3 a:b", Some(3)),
        ("gunicorn --workers=3 --threads 2 a:b", None),
        ("gunicorn -k gevent a:b", None),
        ("bundle exec puma", None),
        ("bundle exec neverblock", Some(1024)),
        ("neverblock --fibers 50 -w 2", Some(100)),
        ("python3 serial.py", Some(1)),
        ("python3 ./threads.py --x", None),
    ] {
        let procfile = format!("web: {command}\n");
        let plan = plan(&[
            ("Procfile", &procfile),
            ("serial.py", "HTTPServer((h, p), H).serve_forever()"),
            ("threads.py", "ThreadingHTTPServer((h, p), H).serve_forever()"),
        ]);
        let web = process(&plan, "web");
        assert_eq!((web.concurrency, web.default_count), (expected, 1), "{command}");
        let notes = plan.recipe.notes.join("\n");
        assert_eq!(notes.contains("cortex scale web=4"), expected == Some(1), "{notes}");
    }
}

#[test]
fn our_file_wins_and_says_what_it_replaced() {
    let plan = plan(&[
        ("cortex.toml", "name = 'x'\nrelease = ['b']\n[processes]\nweb = 'mine'\n"),
        (".veraconfig", "[app]\nname = y\n"),
        ("app.json", r#"{"name": "z", "formation": {"web": {"quantity": 7}}, "addons": []}"#),
        ("Procfile", "web: theirs\nrelease: a\n"),
    ]);
    assert_eq!(plan.manifest.name.unwrap().as_str(), "x");
    let web = &plan.recipe.processes[&ProcessType::web()];
    assert_eq!((web.command.as_str(), web.default_count), ("mine", 7));
    assert_eq!(plan.recipe.release.len(), 1);
    let notes = plan.recipe.notes.join("\n");
    for expected in [
        "cortex.toml: its 'web' replaces 'theirs'",
        "cortex.toml: 'release' replaces: Running the Procfile's release command",
        ".veraconfig was ignored",
        "app.json: 'addons' was ignored",
    ] {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
}

#[test]
fn the_flag_wins_over_the_file_and_the_file_over_detection() {
    let files = [("index.html", ""), ("app.py", "x"), ("cortex.toml", "type = 'static'\n")];
    assert_eq!(plan(&files).recipe.framework, "static");
    assert_eq!(plan(&files).recipe.decided_by, "cortex.toml says static");
    let forced = plan_release(&tree(&files), Some("python"), "test").unwrap();
    assert_eq!(forced.recipe.framework, "python");
    assert!(
        message(&files, Some("cobol")).contains("no application type 'cobol': use one of rails,")
    );
    assert!(message(&[("a.txt", "")], Some("rails")).contains("looks like rails, but Gemfile is"));
}

#[test]
fn the_reference_file_is_read_whole() {
    let manifest = recipe_core::manifest::read_cortex_toml(REFERENCE).unwrap();
    assert_eq!(manifest.name.as_ref().unwrap().as_str(), "shop");
    let gemfile = ("Gemfile", "gem 'rails'\ngem 'puma'\n");
    let application = ("config/application.rb", "Rails::Application");
    let plan = plan(&[("cortex.toml", REFERENCE), gemfile, application, ("config.ru", "")]);
    assert_eq!((plan.manifest.port, plan.manifest.domains.len()), (Some(8000), 2));
    let web = process(&plan, "web");
    assert_eq!((web.concurrency, web.default_count), (Some(5), 2));
    assert_eq!(process(&plan, "worker").default_count, 1);
    assert_eq!(plan.recipe.environment["RAILS_MAX_THREADS"], "5");
    // The third step looks at what `static.output` names.
    assert_eq!((plan.recipe.build.len(), plan.recipe.release.len()), (3, 1));
    assert_eq!(plan.recipe.statics[0].fallback.as_deref(), Some("index.html"));
    assert!(plan.recipe.persist.contains(&"log/".to_owned()));
    let settings = plan.settings;
    assert_eq!(settings.health.path.as_deref(), Some("/up"));
    assert_eq!(settings.limits.memory_bytes, Some(512 << 20));
    assert_eq!(settings.limits.build_memory_bytes, Some(2 << 30));
    assert_eq!(settings.limits.build_cores, Some(2));
    assert_eq!(settings.limits.build_time_ms, Some(45 * 60_000));
    let requests = settings.requests;
    assert_eq!((requests.idle_ms, requests.head_ms), (Some(75_000), Some(20_000)));
    assert_eq!((requests.body_ms, requests.answer_ms), (Some(300_000), Some(300_000)));
    assert_eq!((requests.queue_ms, requests.body_bytes_max), (Some(30_000), Some(10 << 20)));
    assert_eq!((settings.https.redirect, settings.https.hsts_seconds), (true, Some(15_552_000)));
    assert_eq!((settings.rollout, settings.stop_grace_ms), (RolloutMode::StartFirst, 30_000));
    let (sticky, fair) = (RequestKey::Cookie("session".into()), "header:X-Api-Key".to_string());
    assert_eq!((settings.balance.as_str(), settings.sticky), ("rendezvous", Some(sticky)));
    assert_eq!(settings.fair.to_string(), fair);
    assert_eq!((settings.slow_start_ms, settings.hedge_after_ms), (Some(30_000), Some(200)));
}

#[test]
fn sticky_and_fair_settings_choose_the_balancing_strategy() {
    let settings = |text| plan(&[("cortex.toml", text), ("app.py", "")]).settings;
    assert_eq!(settings("sticky = 'address'").balance, STICKY_BALANCE);
    assert_eq!(settings("fair = 'address'").balance, "least-loaded");
    let plain = model::record::encode(&settings(""));
    let plain = String::from_utf8(plain).unwrap();
    assert!(
        !plain.contains("sticky") && !plain.contains("fair"),
        "as older nodes wrote it: {plain}"
    );
    let all = settings("sticky = 'header:A'\nfair = 'header:B'\nslow_start = '1s'");
    let encoded = model::record::encode(&all);
    assert_eq!(model::record::decode::<Settings>(&encoded).unwrap(), all);
}

/// A key that the file's reader knows and the reference leaves out would stay unknown to users.
#[test]
fn the_reference_names_every_key() {
    let error = message(&[("cortex.toml", "no_such_key = 1\n")], None);
    let known = error.split("expected one of").nth(1).unwrap();
    let keys: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    assert!(keys.len() > 10, "{error}");
    for key in keys {
        let shown = REFERENCE.lines().any(|line| {
            line.starts_with(&format!("{key} =")) || line.trim_matches(['[', ']']) == key
        });
        assert!(shown, "cortex.example.toml does not show '{key}'");
    }
}

#[test]
fn what_another_platform_brings_is_refused_with_the_way_out() {
    let puma = "web: bin/start-nginx bundle exec puma\n";
    assert!(message(&[("Procfile", puma)], None).contains("Write 'web: bundle exec puma'"));
    let own = "[processes]\nweb = 'puma'\n";
    assert_eq!(process(&plan(&[("Procfile", puma), ("cortex.toml", own)]), "web").command, "puma");
    let image = [("Dockerfile", "FROM node\nCMD [\"npm\", \"start\"]\n"), ("a.txt", "")];
    assert!(message(&image, None).contains("'web: npm start'"));
}

const VITE: (&str, &str) = (
    "package.json",
    r#"{"scripts": {"build": "vite build"}, "devDependencies": {"vite": "5", "vue": "3"}}"#,
);

#[test]
fn what_is_built_is_the_only_root_of_a_site() {
    let files = [VITE, ("index.html", ""), ("Procfile", "worker: node work.js\n")];
    let found = plan(&files);
    assert_eq!(found.recipe.framework, "site");
    let roots = |plan: &recipe_core::detect::Plan| -> Vec<(String, String)> {
        let mounts = plan.recipe.statics.iter();
        mounts.map(|mount| (mount.prefix.clone(), mount.directory.clone())).collect()
    };
    let root = |directory: &str| ("/".to_owned(), directory.to_owned());
    assert_eq!(roots(&found), [root("dist")]);
    assert_eq!(found.recipe.statics[0].fallback.as_deref(), Some("index.html"));
    assert_eq!(process(&found, "worker").command, "node work.js");
    let with = |settings| plan(&[VITE, ("index.html", ""), ("cortex.toml", settings)]);
    let said = with("[static]\noutput = 'html'\n");
    assert_eq!(roots(&said), [root("html")]);
    assert!(said.recipe.build.last().unwrap().command.contains("html"));
    // The project's own steps come before the look at what they left.
    let built = with("build = ['make']\n");
    let steps: Vec<&str> = built.recipe.build.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["Running make", "Looking for the site"]);
    let replaced = with("[[statics]]\nprefix = '/'\ndirectory = 'pages'\n");
    assert_eq!(roots(&replaced), [root("pages")]);
    let beside = with("[[statics]]\nprefix = '/docs'\ndirectory = 'pages'\n");
    assert_eq!(roots(&beside), [("/docs/".into(), "pages".into()), root("dist")]);
    let served = plan(&[VITE, ("index.html", ""), ("Procfile", "web: node serve.js\n")]);
    assert_eq!((served.recipe.framework.as_str(), roots(&served).len()), ("node", 0));
}

#[test]
fn the_projects_own_file_makes_a_site_of_what_looks_like_a_server() {
    let package = r#"{"scripts": {"build": "make", "start": "node dev.js"}}"#;
    let settings = "[static]\noutput = 'made'\nfallback = 'app.html'\n";
    let found = plan(&[("package.json", package), ("cortex.toml", settings)]);
    assert_eq!(found.recipe.framework, "site");
    assert!(found.recipe.processes.is_empty());
    assert_eq!(found.recipe.statics[0].fallback.as_deref(), Some("app.html"));
    let bare = plan(&[("cortex.toml", &format!("build = ['make']\n{settings}")), ("Makefile", "")]);
    assert_eq!(bare.recipe.statics[0].directory, "made");
    assert_eq!(bare.recipe.build.len(), 2);
}

#[test]
fn what_is_not_recognised_is_listed() {
    let many: Vec<(String, &str)> = (0..50).map(|i| (format!("notes{i:02}.txt"), "")).collect();
    let error = plan_release(&SourceTree::from_pairs(many), None, "odd\u{7}").unwrap_err();
    let text = error.to_string();
    for expected in ["'odd\\u{7}'", "notes00.txt", "and 20 more", "config/application.rb", "  4. "]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("notes40.txt"));
    let DetectError::Nothing(list) = error else { panic!("{text}") };
    assert_eq!(list.recognised.len(), recipe_core::frameworks::ALL.len());
    assert!(message(&[], None).contains("is empty"));
}

#[test]
fn mistakes_in_our_file_are_named() {
    for (text, expected) in [
        ("nmae = 'x'", "unknown field `nmae`"),
        ("name = 'A B'", "name: 'A B' cannot be an application's name"),
        ("port = 70000", "port"),
        ("port = 0", "0 is not a port"),
        ("persist = ['../x']", "must be a path inside the application"),
        ("persist = ['/etc']", "must be a path inside the application"),
        ("rollout = 'sideways'", "unknown variant `sideways`"),
        ("[requests]\nanswr = '1s'", "unknown field `answr`"),
        ("[requests]\nhead = '20'", "requests.head: '20' is not a duration"),
        ("[requests]\nbody_size = '10'", "requests.body_size: '10' is not a size"),
        ("[requests]\nbody_size = '0MB'", "requests.body_size: '0MB' is not a size"),
        ("stop_grace = '30'", "stop_grace: '30' is not a duration"),
        ("stop_grace = '99999999999999999999s'", "is not a duration"),
        ("[limits]\nmemory = '1KB'", "limits.memory"),
        ("[limits]\nbuild_memory = 'much'", "limits.build_memory"),
        ("[limits]\nbuild_cores = 0", "limits.build_cores must be 1"),
        ("[limits]\nbuild_time = '0s'", "limits.build_time"),
        ("[limits]\nconcurrency = 0", "limits.concurrency must be 1"),
        ("[processes]\nweb = ''", "a command is empty"),
        ("[processes]\n'a b' = 'x'", "'a b' cannot be a process type"),
        ("[processes.web]\ncount = 100000", "processes.web.count"),
        ("[env]\n'A-B' = 'x'", "not a variable's name"),
        ("domains = ['a b']", "not a host name"),
        ("[health]\npath = 'up'", "must begin with '/'"),
        ("[[statics]]\nprefix = '/'\ndirectory = '../..'", "statics"),
        ("sticky = 'ip'", "sticky: 'ip' is none of 'address', 'address/24'"),
        ("sticky = 'cookie:'", "sticky: 'cookie:'"),
        ("sticky = 'header:a b'", "sticky: 'header:a b'"),
        ("fair = 'address/33'", "fair: 'address/33' is none of 'address', 'address/24'"),
        ("fair = 'cookie:id'", "fair: a cookie tells no clients apart"),
        ("slow_start = '30'", "slow_start: '30' is not a duration"),
        ("hedge_after = 'soon'", "hedge_after: 'soon' is not a duration"),
        ("[https]\nhsts = '1y'", "https.hsts: '1y' is not a time"),
        ("[https]\nforce = true", "unknown field `force`"),
        ("name = ", "cortex.toml"),
    ] {
        let found = message(&[("cortex.toml", text), ("app.py", "")], None);
        assert!(found.starts_with("cortex.toml: ") && found.contains(expected), "{text}: {found}");
    }
    let twice = message(&[("Procfile", "web: a\nweb: b\n")], None);
    assert!(twice.contains("lines 1 and 2"), "{twice}");
}

#[test]
fn processes_alone_are_enough() {
    let plan = plan(&[("cortex.toml", "[processes]\nweb = './serve'\n[processes.x]\ncount = 2\n")]);
    assert_eq!(plan.recipe.framework, "procfile");
    assert_eq!(process(&plan, "web").command, "./serve");
    assert!(plan.recipe.notes[0].contains("'x' was ignored"), "{:?}", plan.recipe.notes);
}

#[test]
fn app_json_asks_for_what_is_missing() {
    let text = r#"{"env": {"A": {"required": true}, "B": {"generator": "secret"}},
                   "scripts": {"postdeploy": "./seed"}}"#;
    let plan = plan(&[("app.json", text), ("Procfile", "web: x")]);
    assert_eq!(plan.recipe.release[0].command, "./seed");
    assert_eq!(plan.manifest.secrets, ["B"]);
    // The code that takes the push provides them, and says so.
    assert_eq!(plan.manifest.required, ["A"]);
    let notes = plan.recipe.notes.join("\n");
    assert!(!notes.contains("is not set"), "{notes}");
}

/// Pieces that readers look for, in orders that nobody writes.
const PIECES: &[&str] = &[
    "[package]",
    "package main",
    "use = egg:a",
    "output: 'export'",
    "\"dependencies\": {\"next\": \"1\"}",
    "<artifactId>",
    "executable a",
    "public static void main(",
    "build-depends: yesod",
    ":phoenix",
    "web: a",
    "release:",
    "\n",
    " ",
    "=",
    "\"",
    "'",
    "[app]",
    "name",
    "{",
    "}",
    "[",
    "]",
    ":",
    "ä",
    "/",
    "..",
    "\u{0}",
    "DJANGO_SETTINGS_MODULE",
    "django",
    "Flask(",
    "app = ",
    "def create_app",
    "(",
    ")",
    "sqlite:///",
    "x.db",
    "production:",
    "  database: ",
    "STATIC_ROOT = ",
    "using Django 5.",
    "-r ",
    "#",
    "\"scripts\"",
    "\"env\"",
    "[project]",
    "dependencies",
    "Rails::Application",
    ",",
    "\u{feff}",
    "def a(b",
];
const FILES: &[&str] = &[
    "Cargo.toml",
    "src/main.rs",
    "go.mod",
    "cmd/a/main.go",
    "public/index.php",
    "production.ini",
    "next.config.js",
    "pom.xml",
    "src/A.java",
    "a.cabal",
    "config/settings.yml",
    "mix.exs",
    "Procfile",
    "cortex.toml",
    ".veraconfig",
    "app.json",
    "package.json",
    "manage.py",
    "app.py",
    "a/settings.py",
    "a/wsgi.py",
    "requirements.txt",
    "pyproject.toml",
    "Pipfile",
    "Gemfile",
    "Gemfile.lock",
    "config.ru",
    "config/application.rb",
    "config/database.yml",
    "Staticfile",
    "index.html",
    "setup.py",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever is pushed, the answer is a plan or an error, and a plan's paths stay inside.
    #[test]
    fn no_content_of_files_causes_a_panic(
        contents in prop::collection::btree_map(
            prop::sample::select(FILES),
            prop::collection::vec(prop::sample::select(PIECES), 0..12),
            0..6,
        ),
        forced in prop::option::of(0..recipe_core::frameworks::ALL.len()),
    ) {
        let pairs = contents.iter().map(|(path, pieces)| (*path, pieces.concat()));
        let forced = forced.map(|index| recipe_core::frameworks::ALL[index].name());
        if let Ok(plan) = plan_release(&SourceTree::from_pairs(pairs), forced, "odd") {
            for path in &plan.recipe.persist {
                prop_assert!(!path.starts_with('/') && path.split('/').all(|name| name != ".."));
            }
            for mount in &plan.recipe.statics {
                prop_assert!(mount.prefix.starts_with('/') && mount.prefix.ends_with('/'));
                prop_assert!(mount.directory.split('/').all(|name| name != ".."));
            }
        }
    }
}

#[test]
fn portable_builds_are_recognised() {
    let go = [("go.mod", "module x\n"), ("main.go", "package main\n")];
    let flask = [("app.py", "from flask import Flask\napp = Flask(__name__)\n")];
    let portable = |files: &[(&str, &str)], settings: &str| {
        let files = files.iter().copied().chain([("cortex.toml", settings)]);
        let plan = plan_release(&SourceTree::from_pairs(files), None, "shop").unwrap();
        plan.recipe.portable.is_some()
    };
    let own = "build = ['make']\n";
    for (files, settings, expected) in [
        (&go[..], "", true),
        (&go, "portable = false\n", false),
        (&go, own, false),
        (&go, &format!("{own}portable = true\n"), true),
        (&flask, "", false),
        (&flask, "portable = true\n", true),
    ] {
        assert_eq!(portable(files, settings), expected, "{files:?} {settings}");
    }
}
