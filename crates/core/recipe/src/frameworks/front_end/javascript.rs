//! What each generator of the JavaScript world makes: pages in a directory, or a server.

mod angular;

use super::commands::{self, argument_of, option_of, variable_of};
use super::generators::Generator;
use super::text::{join, says, value_of};
use super::{FrontEndRole, Site, build_script, usual_build_script};
use crate::frameworks::package_json::{PACKAGE_JSON, Package};
use crate::source::SourceTree;

/// Libraries that make pages in the browser.
const CLIENT_SIDE: &[&str] = &[
    "react",
    "preact",
    "vue",
    "svelte",
    "solid-js",
    "inferno",
    "mithril",
    "lit",
    "@angular/core",
    "vue-router",
    "react-router-dom",
    "@tanstack/react-router",
    "wouter",
    "navigo",
];
/// Generators that write a page for each address, although they use such a library.
const PRERENDERING: &[&str] =
    &["vike", "vite-plugin-ssr", "vite-ssg", "vite-react-ssg", "react-snap"];
const INDEX: &str = "index.html";

/// What is asked of the project's files.
struct Project<'a> {
    generator: Generator,
    tree: &'a SourceTree,
    package: &'a Package,
    settings: &'a str,
    /// The text of the script that builds.
    script: &'a str,
}

/// Returns the role that a generator gives the project; `None` if there is nothing that could be
/// built.
pub fn role(generator: Generator, tree: &SourceTree, package: &Package) -> Option<FrontEndRole> {
    let names: &[&str] = match generator {
        Generator::VitePress | Generator::VuePress => &["heroku-postbuild", "build", "docs:build"],
        Generator::Nuxt => &["heroku-postbuild", "build", "generate"],
        _ => &["heroku-postbuild", "build"],
    };
    let name = build_script(package, names);
    let command = own_command(generator, tree);
    if name.is_none() && command.is_none() {
        return None;
    }
    let script = name.and_then(|name| package.script(name)).unwrap_or_default();
    let settings = generator.settings(tree);
    let project = Project { generator, tree, package, settings, script };
    let site = Site {
        reason: format!("{PACKAGE_JSON} names {}, and no server", generator.name()),
        script: name.map(str::to_owned),
        command: command.map(str::to_owned),
        ..Site::default()
    };
    Some(project.role(site))
}

/// Returns a site with a build script of which no generator is known.
pub fn unknown(tree: &SourceTree, package: &Package) -> Site {
    let script = usual_build_script(package);
    Site {
        reason: format!("{PACKAGE_JSON} has a build script and no start script"),
        script: script.map(str::to_owned),
        fallback: fallback_if(is_client_side(tree, package) && html_files(tree) <= 1),
        ..Site::default()
    }
}

fn fallback_if(wanted: bool) -> Option<String> {
    wanted.then(|| INDEX.to_owned())
}

/// Returns the command that builds a project that has no script for it.
fn own_command(generator: Generator, tree: &SourceTree) -> Option<&'static str> {
    Some(match generator {
        Generator::Eleventy => "eleventy",
        Generator::Gatsby => "gatsby build",
        Generator::Docusaurus => "docusaurus build",
        Generator::Astro => "astro build",
        Generator::Hexo => "hexo generate",
        Generator::Nuxt => "nuxt build",
        Generator::Angular if tree.exists("angular.json") => "ng build",
        Generator::Vite if tree.exists(INDEX) => "vite build",
        Generator::VitePress if tree.has_directory("docs/.vitepress") => "vitepress build docs",
        Generator::VitePress => "vitepress build",
        _ => return None,
    })
}

impl Project<'_> {
    fn role(&self, site: Site) -> FrontEndRole {
        match self.generator {
            Generator::Nuxt => self.nuxt(site),
            Generator::SvelteKit => self.svelte_kit(site),
            Generator::Astro => self.astro(site),
            Generator::Angular => angular::role(self.tree, self.script, site),
            Generator::ReactRouter | Generator::Remix => self.react_router(site),
            generator => {
                let fallback = fallback_if(self.has_fallback());
                let base = self.base();
                FrontEndRole::Site(Site { output: self.output(generator), fallback, base, ..site })
            }
        }
    }

    /// Returns an option of the script, a setting, or the generator's own convention.
    fn set(&self, options: &[&str], key: &str, usual: &str) -> Option<String> {
        if let Some(path) = option_of(self.script, self.generator.program(), options) {
            return join("", path);
        }
        match value_of(self.settings, key).filter(|_| !key.is_empty()) {
            Some(Ok(path)) => join("", path),
            Some(Err(())) => None,
            None => Some(usual.into()),
        }
    }

    fn output(&self, generator: Generator) -> Option<String> {
        match generator {
            Generator::Gatsby | Generator::Hexo => Some("public".into()),
            Generator::Docusaurus => self.set(&["--out-dir"], "", "build"),
            Generator::Eleventy => self.set(&["--output"], "output", "_site"),
            Generator::CreateReactApp => match variable_of(self.script, "BUILD_PATH") {
                Some(path) => join("", path),
                None => Some("build".into()),
            },
            Generator::VueCli => self.set(&["--dest"], "outputDir", "dist"),
            Generator::Ember => self.set(&["--output-path", "-o"], "", "dist"),
            Generator::Gridsome => self.set(&[], "outputDir", "dist"),
            Generator::Quasar => Some("dist/spa".into()),
            Generator::Stencil => Some("www".into()),
            Generator::Parcel => self.set(&["--dist-dir", "--out-dir", "-d"], "", "dist"),
            Generator::VitePress => self.press(".vitepress/dist", "outDir"),
            Generator::VuePress => self.press(".vuepress/dist", "dest"),
            Generator::Vite => self.vite_output(),
            // The settings of the others say it in too many ways.
            _ => None,
        }
    }

    /// Returns the directory of VitePress and VuePress, which write beside their own settings, in
    /// the directory that the script names.
    fn press(&self, usual: &str, key: &str) -> Option<String> {
        let argument = argument_of(self.script, self.generator.program(), "build");
        let named = argument.filter(|path| self.tree.has_directory(path.trim_matches('/')));
        let directory = named.unwrap_or(if self.tree.has_directory("docs") { "docs" } else { "" });
        let directory = if named.is_none() && !self.script.is_empty() { "" } else { directory };
        match value_of(self.settings, key) {
            Some(_) => None,
            None => join(directory, usual),
        }
    }

    fn vite_output(&self) -> Option<String> {
        let root = match value_of(self.settings, "root") {
            Some(Ok(root)) => root,
            Some(Err(())) => return None,
            None => argument_of(self.script, "vite", "build")
                .filter(|path| self.tree.has_directory(path.trim_matches('/')))
                .unwrap_or_default(),
        };
        let option = option_of(self.script, "vite", &["--outDir"]);
        match option.map(Ok).or(value_of(self.settings, "outDir")) {
            Some(Ok(path)) => join(root, path),
            Some(Err(())) => None,
            None => join(root, "dist"),
        }
    }

    /// Returns whether the browser makes the pages, all out of one.
    fn has_fallback(&self) -> bool {
        match self.generator {
            Generator::CreateReactApp | Generator::Ember | Generator::Quasar => true,
            Generator::VueCli => value_of(self.settings, "pages").is_none(),
            Generator::Vite | Generator::Webpack | Generator::Parcel | Generator::Rsbuild => {
                let several = html_files(self.tree) > 1
                    && (["input", "pages", "glob", "entry"].iter().any(|key| {
                        value_of(self.settings, key).is_some() || self.settings.contains("glob")
                    }) || self.generator == Generator::Parcel);
                let pages = says(self.settings, "appType", "'mpa'")
                    || says(self.settings, "appType", "\"mpa\"");
                is_client_side(self.tree, self.package) && !several && !pages
            }
            _ => false,
        }
    }

    /// Returns where pages ask for their files.
    fn base(&self) -> Option<String> {
        let path = match self.generator {
            Generator::Vite => option_of(self.script, "vite", &["--base"])
                .or_else(|| value_of(self.settings, "base")?.ok()),
            Generator::VueCli => value_of(self.settings, "publicPath")?.ok(),
            Generator::CreateReactApp => self.package.text(&["homepage"]).map(path_of_url),
            Generator::Docusaurus => value_of(self.settings, "baseUrl")?.ok(),
            _ => None,
        }?;
        let inner = path.trim_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
        let absolute = path.starts_with('/') && !path.starts_with("//");
        (absolute && !inner.is_empty() && inner.chars().all(plain)).then(|| format!("/{inner}/"))
    }

    fn nuxt(&self, site: Site) -> FrontEndRole {
        let version = ["nuxt", "nuxt-edge"].iter().find_map(|name| self.package.version(name));
        let second = version
            .is_some_and(|text| text.trim_start_matches(['^', '~']).starts_with('2'))
            || self.package.lists("nuxt-edge");
        let static_target = ["'static'", "\"static\""].iter().any(|value| {
            says(self.settings, "target", value) || says(self.settings, "preset", value)
        });
        let generates = self.script.contains("generate") || (second && static_target);
        let fallback = says(self.settings, "ssr", "false").then(|| "200.html".to_owned());
        match (second, generates || static_target) {
            (true, true) => {
                FrontEndRole::Site(Site { output: Some("dist".into()), fallback, ..site })
            }
            (false, true) => {
                FrontEndRole::Site(Site { output: Some(".output/public".into()), fallback, ..site })
            }
            (true, false) => FrontEndRole::Server("nuxt start".into()),
            (false, false) => FrontEndRole::Server("node .output/server/index.mjs".into()),
        }
    }

    fn svelte_kit(&self, site: Site) -> FrontEndRole {
        let uses = |adapter: &str| {
            let package = format!("@sveltejs/adapter-{adapter}");
            self.settings.contains(&package)
                || (!self.settings.contains("adapter-") && self.package.lists(&package))
        };
        if uses("static") {
            let output = match value_of(self.settings, "pages") {
                Some(Ok(path)) => join("", path),
                Some(Err(())) => None,
                None => Some("build".into()),
            };
            let fallback = value_of(self.settings, "fallback").and_then(Result::ok);
            // The router answers with it by itself, and with its status.
            let fallback = fallback.filter(|name| *name != "404.html").map(str::to_owned);
            return FrontEndRole::Site(Site { output, fallback, ..site });
        }
        if uses("node") {
            let out = value_of(self.settings, "out").and_then(Result::ok).unwrap_or("build");
            return FrontEndRole::Server(format!("node {}", crate::frameworks::shell_word(out)));
        }
        let foreign = ["auto", "vercel", "netlify", "cloudflare", "cloudflare-workers"];
        match foreign.iter().find(|adapter| uses(adapter)) {
            Some(adapter) => FrontEndRole::Unusable(format!(
                "its @sveltejs/adapter-{adapter} makes nothing that runs here: use \
                 @sveltejs/adapter-node for a server, or @sveltejs/adapter-static for pages"
            )),
            None => FrontEndRole::Site(site),
        }
    }

    fn astro(&self, site: Site) -> FrontEndRole {
        let uses = |adapter: &str| self.settings.contains(&format!("@astrojs/{adapter}"));
        let server = ["server", "hybrid"].iter().any(|value| {
            ["'", "\""].iter().any(|q| says(self.settings, "output", &format!("{q}{value}{q}")))
        });
        let out = self.set(&["--outDir"], "outDir", "dist");
        if uses("node") {
            if self.settings.contains("middleware") {
                return FrontEndRole::Unusable(
                    "its @astrojs/node makes middleware and not a server: write mode: 'standalone' \
                     into astro.config, or add a start script that runs a server of your own"
                        .into(),
                );
            }
            let out = out.unwrap_or_else(|| "dist".into());
            return FrontEndRole::Server(format!("node ./{out}/server/entry.mjs"));
        }
        let foreign = ["vercel", "netlify", "cloudflare", "deno"];
        match foreign.iter().find(|adapter| uses(adapter)).filter(|_| server) {
            Some(adapter) => FrontEndRole::Unusable(format!(
                "its @astrojs/{adapter} makes a server for another place: use @astrojs/node with \
                 mode: 'standalone'"
            )),
            None => FrontEndRole::Site(Site { output: out, ..site }),
        }
    }

    fn react_router(&self, site: Site) -> FrontEndRole {
        if says(self.settings, "ssr", "false") {
            let output = match value_of(self.settings, "buildDirectory") {
                Some(Ok(path)) => join(path, "client"),
                Some(Err(())) => None,
                None => Some("build/client".into()),
            };
            return FrontEndRole::Site(Site { output, fallback: fallback_if(true), ..site });
        }
        let servers = [
            ("@react-router/serve", "react-router-serve ./build/server/index.js"),
            ("@remix-run/serve", "remix-serve ./build/server/index.js"),
        ];
        match servers.iter().find(|(package, _)| self.package.lists(package)) {
            Some((_, command)) => FrontEndRole::Server((*command).into()),
            None => FrontEndRole::Unusable(format!(
                "{PACKAGE_JSON} has no start script: add one that runs its server, or say ssr: \
                 false in its settings for pages that the browser makes"
            )),
        }
    }
}

/// Returns the path of `https://example.org/path`.
fn path_of_url(url: &str) -> &str {
    let Some((_, rest)) = url.split_once("://") else { return url };
    rest.find('/').map_or("", |at| &rest[at..])
}

fn is_client_side(tree: &SourceTree, package: &Package) -> bool {
    if package.lists_any(PRERENDERING) {
        return false;
    }
    let sources = ["*.jsx", "*.tsx", "*.vue", "*.svelte"];
    package.lists_any(CLIENT_SIDE)
        || sources.iter().any(|pattern| tree.named(pattern).next().is_some())
}

/// Returns how many pages the project itself has, without those that are only copied and those of
/// tests.
fn html_files(tree: &SourceTree) -> usize {
    let aside =
        ["public/", "static/", "test", "e2e", "cypress", "docs/", "dist/", "build/", "coverage/"];
    let own = tree.named("*.html").filter(|(path, _)| {
        !aside.iter().any(|aside| path.starts_with(aside)) && !path.contains("/test")
    });
    own.count()
}

/// Returns whether a script of the project is its compiler alone, which leaves a program to be
/// started.
pub fn only_compiles(text: &str) -> bool {
    ["tsc", "nest", "swc", "babel", "tsup", "esbuild"]
        .iter()
        .any(|program| commands::calls(text, program))
}
