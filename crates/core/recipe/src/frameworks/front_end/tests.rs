//! Tests of what is known of the generators of front ends, on small trees.

use super::*;

fn tree(files: &[(&str, &str)]) -> SourceTree {
    SourceTree::from_pairs(files.iter().copied())
}

fn role_of(files: &[(&str, &str)]) -> Option<FrontEndRole> {
    let tree = tree(files);
    role(&tree, &Package::read(&tree).unwrap())
}

/// Checks where the pages are and what answers where none is; `None` for an output that is found
/// later.
#[track_caller]
fn check(files: &[(&str, &str)], output: Option<&str>, fallback: Option<&str>) {
    match role_of(files) {
        Some(FrontEndRole::Site(site)) => {
            let found = (site.output.as_deref(), site.fallback.as_deref());
            assert_eq!(found, (output, fallback), "{files:?}");
        }
        other => panic!("{files:?}: {other:?}"),
    }
}

#[track_caller]
fn check_server(files: &[(&str, &str)], command: &str) {
    assert_eq!(role_of(files), Some(FrontEndRole::Server(command.into())), "{files:?}");
    let recipe = super::super::node::Node.recipe(&tree(files)).unwrap();
    assert_eq!(recipe.processes.values().next().unwrap().command, command);
}

fn listing(package: &str, build: &str) -> String {
    format!(r#"{{"scripts": {{"build": "{build}"}}, "devDependencies": {{"{package}": "1"}}}}"#)
}

const INDEX: (&str, &str) = ("index.html", "<script type=\"module\" src=\"/src/main.jsx\">");
const SPA: Option<&str> = Some("index.html");

#[test]
fn each_generator_writes_where_its_convention_says() {
    for (package, build, output, fallback) in [
        ("gatsby", "gatsby build", "public", None),
        ("@docusaurus/core", "docusaurus build", "build", None),
        ("@docusaurus/core", "docusaurus build --out-dir x", "x", None),
        ("@11ty/eleventy", "eleventy", "_site", None),
        ("@11ty/eleventy", "npx @11ty/eleventy --output=pages", "pages", None),
        ("react-scripts", "react-scripts build", "build", SPA),
        ("react-scripts", "BUILD_PATH='./x' react-scripts build", "x", SPA),
        ("@vue/cli-service", "vue-cli-service build", "dist", SPA),
        ("ember-cli", "ember build --environment=production", "dist", SPA),
        ("astro", "astro build", "dist", None),
        ("hexo", "hexo generate", "public", None),
        ("parcel", "parcel build src/index.html", "dist", None),
        ("parcel", "parcel build src/index.html --dist-dir web", "web", None),
        ("nuxt", "nuxt generate", ".output/public", None),
        ("vite", "vite build", "dist", None),
        ("vitepress", "vitepress build", ".vitepress/dist", None),
    ] {
        check(&[(PACKAGE_JSON, &listing(package, build))], Some(output), fallback);
    }
    let docs = r#"{"scripts": {"docs:build": "vitepress build docs"}, "devDependencies": {"vitepress": "1"}}"#;
    let page = ("docs/index.md", "");
    check(&[(PACKAGE_JSON, docs), page], Some("docs/.vitepress/dist"), None);
    let press = listing("vuepress", "vuepress build docs");
    check(&[(PACKAGE_JSON, &press), page], Some("docs/.vuepress/dist"), None);
    check(&[(PACKAGE_JSON, &listing("webpack", "webpack"))], None, None);
    check(
        &[(PACKAGE_JSON, r#"{"devDependencies": {"@11ty/eleventy": "3"}}"#)],
        Some("_site"),
        None,
    );
    let config = ("eleventy.config.js", "return { dir: { input: 'src', output: 'html' } };");
    check(&[(PACKAGE_JSON, &listing("@11ty/eleventy", "eleventy")), config], Some("html"), None);
}

#[test]
fn vite_has_a_fallback_where_the_browser_makes_the_pages() {
    let react = r#"{"scripts": {"build": "vite build", "dev": "vite"},
        "dependencies": {"react": "18"}, "devDependencies": {"vite": "5"}}"#;
    check(&[(PACKAGE_JSON, react), INDEX], Some("dist"), SPA);
    // The script is the project's own; another one names the tool.
    let own = r#"{"scripts": {"dev": "vite", "build": "node build.js"}}"#;
    check(&[(PACKAGE_JSON, own), INDEX, ("src/main.jsx", "")], Some("dist"), SPA);
    let vue = react.replace("react", "vue");
    let several = (
        "vite.config.js",
        "build: {\n rollupOptions: {\n  input: {\n   main: 'index.html',\n   about: 'about.html' } } }",
    );
    check(&[(PACKAGE_JSON, &vue), INDEX, ("about.html", ""), several], Some("dist"), None);
    for (config, output) in [
        ("build: { outDir: 'www' }", Some("www")),
        ("root: 'src',\nbuild: {\n outDir: '../out',\n}", Some("out")),
        ("root: 'client'", Some("client/dist")),
        ("build: { outDir: path.resolve('x') }", None),
    ] {
        check(&[(PACKAGE_JSON, react), INDEX, ("vite.config.ts", config)], output, SPA);
    }
}

#[test]
fn pages_below_a_path_are_served_there_too() {
    let files = [
        (PACKAGE_JSON, &*listing("vite", "vite build")),
        INDEX,
        ("vite.config.js", "base: '/shop/',"),
    ];
    let recipe = FrontEnd.recipe(&tree(&files)).unwrap();
    let mounts: Vec<(&str, &str)> =
        recipe.statics.iter().map(|one| (one.prefix.as_str(), one.directory.as_str())).collect();
    assert_eq!(mounts, [("/shop/", "dist"), ("/", "dist")]);
}

#[test]
fn angular_says_it_in_its_own_file() {
    let package = listing("@angular/core", "ng build");
    let with = |builder: &str, options: &str| {
        let text = format!(
            r#"{{"projects": {{"lib": {{"projectType": "library"}}, "shop": {{"projectType": "application",
                "architect": {{"build": {{"builder": "{builder}", "options": {{{options}}}}}}}}}}}}}"#
        );
        role_of(&[(PACKAGE_JSON, &package), ("angular.json", &text)]).unwrap()
    };
    let output = |role: FrontEndRole| match role {
        FrontEndRole::Site(site) => (site.output.unwrap(), site.fallback.unwrap()),
        other => panic!("{other:?}"),
    };
    let (old, new) = ("@angular-devkit/build-angular:browser", "@angular/build:application");
    let index = || "index.html".to_owned();
    assert_eq!(output(with(old, r#""outputPath": "dist/shop""#)), ("dist/shop".into(), index()));
    assert_eq!(output(with(new, "")), ("dist/shop/browser".into(), index()));
    assert_eq!(output(with(new, r#""outputPath": "www""#)), ("www/browser".into(), index()));
    let flat = r#""outputPath": {"base": "www", "browser": ""}"#;
    assert_eq!(output(with(new, flat)), ("www".into(), index()));
    let made = output(with(new, r#""outputMode": "static", "ssr": {"entry": "s.ts"}"#));
    assert_eq!(made, ("dist/shop/browser".into(), "index.csr.html".into()));
    let server = with(new, r#""outputMode": "server", "ssr": {"entry": "src/server.ts"}"#);
    assert_eq!(server, FrontEndRole::Server("node dist/shop/server/server.mjs".into()));
}

#[test]
fn adapters_decide_between_pages_and_a_server() {
    let svelte = listing("@sveltejs/kit", "vite build");
    let with = |config| [(PACKAGE_JSON, svelte.as_str()), ("svelte.config.js", config)];
    let pages = "import adapter from '@sveltejs/adapter-static';\nadapter({ pages: 'web', fallback: '200.html' })";
    check(&with(pages), Some("web"), Some("200.html"));
    check(&with("'@sveltejs/adapter-static'"), Some("build"), None);
    check_server(&with("'@sveltejs/adapter-node'"), "node build");
    let Some(FrontEndRole::Unusable(why)) = role_of(&with("'@sveltejs/adapter-auto'")) else {
        panic!()
    };
    assert!(why.contains("adapter-node"), "{why}");
    let astro = listing("astro", "astro build");
    let config = "import node from '@astrojs/node';\nadapter: node({ mode: 'standalone' })";
    let files = [(PACKAGE_JSON, astro.as_str()), ("astro.config.mjs", config)];
    check_server(&files, "node ./dist/server/entry.mjs");
    let nuxt = listing("nuxt", "nuxt build");
    check_server(&[(PACKAGE_JSON, &nuxt)], "node .output/server/index.mjs");
    let router = r#"{"scripts": {"build": "react-router build"}, "dependencies":
        {"@react-router/serve": "7"}, "devDependencies": {"@react-router/dev": "7"}}"#;
    check_server(&[(PACKAGE_JSON, router)], "react-router-serve ./build/server/index.js");
    let pages = ("react-router.config.ts", "export default { ssr: false }");
    check(&[(PACKAGE_JSON, router), pages], Some("build/client"), SPA);
}

#[test]
fn a_project_with_its_own_server_is_not_a_site() {
    let with = |start: &str, extra: &str| {
        format!(
            r#"{{"scripts": {{"build": "vite build"{start}}}, "devDependencies": {{"vite": "5"}}{extra}}}"#
        )
    };
    let serving = with(r#", "start": "node server.js""#, "");
    assert_eq!(role_of(&[(PACKAGE_JSON, &serving), INDEX]), None);
    let developing = with(r#", "start": "vite --host""#, "");
    assert!(matches!(role_of(&[(PACKAGE_JSON, &developing), INDEX]), Some(FrontEndRole::Site(_))));
    let plain = with("", "");
    let procfile = |text| [(PACKAGE_JSON, plain.as_str()), INDEX, ("Procfile", text)];
    assert_eq!(role_of(&procfile("web: node server.js\n")), None);
    assert!(matches!(role_of(&procfile("worker: node w.js\n")), Some(FrontEndRole::Site(_))));
    let build = r#"{"scripts": {"build": "make"}}"#;
    let listening = ("server.js", "http.createServer(f).listen(process.env.PORT)");
    assert_eq!(role_of(&[(PACKAGE_JSON, build), listening]), None);
    check(&[(PACKAGE_JSON, build), INDEX], None, None);
    let compiled = r#"{"main": "dist/a.js", "scripts": {"build": "tsc"}}"#;
    assert_eq!(role_of(&[(PACKAGE_JSON, compiled)]), None);
    assert_eq!(role_of(&[(PACKAGE_JSON, "{}"), INDEX]), None);
}

#[test]
fn the_build_is_followed_by_a_check_of_its_output() {
    let files = [
        (PACKAGE_JSON, &*listing("vite", "vite build")),
        INDEX,
        ("pnpm-lock.yaml", "lockfileVersion: '9.0'\n"),
    ];
    let recipe = FrontEnd.recipe(&tree(&files)).unwrap();
    let names: Vec<&str> = recipe.build.iter().map(|step| step.name.as_str()).collect();
    let expected = [
        "Installing pnpm 9",
        "Installing Node.js packages",
        "Building the site",
        "Looking for the site",
    ];
    assert_eq!(names, expected);
    assert_eq!(recipe.build[2].command, "pnpm run build");
    assert!(recipe.processes.is_empty());
    assert_eq!(recipe.statics.len(), 1);
}

#[test]
fn a_staticfile_names_a_root_that_the_build_makes() {
    let build = (PACKAGE_JSON, r#"{"scripts": {"build": "make", "start": "node dev.js"}}"#);
    let files = [build, ("Staticfile", "root: made\npushstate: enabled\n")];
    let reason = FrontEnd.detect(&tree(&files));
    assert_eq!(reason.as_deref(), Some("Staticfile asks for a static site"));
    let mount = FrontEnd.recipe(&tree(&files)).unwrap().statics.remove(0);
    assert_eq!((mount.directory.as_str(), mount.fallback.as_deref()), ("made", SPA));
}

#[test]
fn generators_outside_node_are_named_by_their_settings() {
    for (files, output, command) in [
        (&[("hugo.toml", ""), ("content/a.md", "")][..], "public", "hugo"),
        (&[("config.toml", "publishDir = 'x'"), ("content/a.md", "")], "x", "hugo"),
        (&[("config.toml", "base_url = ''"), ("templates/a.html", "")], "public", "zola build"),
        (&[("_config.yml", ""), ("_posts/a.md", "")], "_site", "jekyll build"),
        (&[("_config.yml", ""), ("Gemfile", "gem 'jekyll'")], "_site", "bundle exec jekyll build"),
        (&[("mkdocs.yml", "site_dir: www")], "www", ".venv/bin/mkdocs build --quiet"),
        (&[("book.toml", "")], "book", "mdbook build"),
    ] {
        let tree = tree(files);
        assert!(FrontEnd.detect(&tree).is_some(), "{files:?}");
        let recipe = FrontEnd.recipe(&tree).unwrap();
        assert_eq!(recipe.statics[0].directory, output, "{files:?}");
        assert!(recipe.build.iter().any(|step| step.command == command), "{:?}", recipe.build);
    }
    assert_eq!(FrontEnd.detect(&tree(&[("config.yml", "a: b")])), None);
    assert!(FrontEnd.recipe(&SourceTree::new()).is_err());
}
