//! The tools that make a site out of a project with a package.json.

use super::commands;
use crate::frameworks::package_json::Package;
use crate::source::SourceTree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    Nuxt,
    Gatsby,
    Docusaurus,
    VitePress,
    VuePress,
    SvelteKit,
    Astro,
    Angular,
    Ember,
    CreateReactApp,
    VueCli,
    ReactRouter,
    Remix,
    Eleventy,
    Gridsome,
    Hexo,
    Quasar,
    Stencil,
    Parcel,
    Rsbuild,
    /// Webpack and tools that are configured alike.
    Webpack,
    Vite,
}

/// The marks by which a generator is recognised.
struct Marks {
    generator: Generator,
    name: &'static str,
    /// The packages, each of which reveals it.
    packages: &'static [&'static str],
    /// The program that scripts call.
    program: &'static str,
    /// The settings file in the root, without its ending.
    settings: &'static str,
}

const fn marks(
    generator: Generator,
    name: &'static str,
    packages: &'static [&'static str],
    program: &'static str,
    settings: &'static str,
) -> Marks {
    Marks { generator, name, packages, program, settings }
}

/// All generators. One that brings another comes before it: Astro uses Vite.
const ALL: &[Marks] = &[
    marks(Generator::Nuxt, "Nuxt", &["nuxt", "nuxt3", "nuxt-edge"], "nuxt", "nuxt.config"),
    marks(Generator::Gatsby, "Gatsby", &["gatsby"], "gatsby", "gatsby-config"),
    marks(
        Generator::Docusaurus,
        "Docusaurus",
        &["@docusaurus/core"],
        "docusaurus",
        "docusaurus.config",
    ),
    marks(Generator::VitePress, "VitePress", &["vitepress"], "vitepress", ".vitepress/config"),
    marks(Generator::VuePress, "VuePress", &["vuepress"], "vuepress", ".vuepress/config"),
    marks(Generator::SvelteKit, "SvelteKit", &["@sveltejs/kit"], "svelte-kit", "-"),
    marks(Generator::Astro, "Astro", &["astro"], "astro", "astro.config"),
    marks(Generator::Angular, "Angular", &["@angular/core"], "ng", "angular"),
    marks(Generator::Ember, "Ember", &["ember-cli", "ember-source"], "ember", "ember-cli-build"),
    marks(
        Generator::CreateReactApp,
        "Create React App",
        &["react-scripts", "react-app-rewired", "@craco/craco"],
        "react-scripts",
        "-",
    ),
    marks(Generator::VueCli, "Vue CLI", &["@vue/cli-service"], "vue-cli-service", "vue.config"),
    marks(
        Generator::ReactRouter,
        "React Router",
        &["@react-router/dev"],
        "react-router",
        "react-router.config",
    ),
    marks(Generator::Remix, "Remix", &["@remix-run/dev"], "remix", "remix.config"),
    marks(Generator::Eleventy, "Eleventy", &["@11ty/eleventy"], "eleventy", "eleventy.config"),
    marks(Generator::Gridsome, "Gridsome", &["gridsome"], "gridsome", "gridsome.config"),
    marks(Generator::Hexo, "Hexo", &["hexo"], "hexo", "-"),
    marks(
        Generator::Quasar,
        "Quasar",
        &["@quasar/app-vite", "@quasar/app-webpack", "@quasar/app"],
        "quasar",
        "quasar.config",
    ),
    marks(Generator::Stencil, "Stencil", &["@stencil/core"], "stencil", "stencil.config"),
    marks(Generator::Parcel, "Parcel", &["parcel", "parcel-bundler"], "parcel", "-"),
    marks(Generator::Rsbuild, "Rsbuild", &["@rsbuild/core"], "rsbuild", "rsbuild.config"),
    marks(
        Generator::Webpack,
        "webpack",
        &["webpack", "@rspack/cli", "@rspack/core"],
        "webpack",
        "webpack.config",
    ),
    marks(Generator::Vite, "Vite", &["vite", "rolldown-vite"], "vite", "vite.config"),
];

impl Generator {
    pub fn of(tree: &SourceTree, package: &Package) -> Option<Generator> {
        let by_package = |marks: &&Marks| package.lists_any(marks.packages);
        let by_file = |marks: &&Marks| {
            let settings = [marks.settings.to_owned(), format!("docs/{}", marks.settings)];
            settings.iter().any(|settings| {
                ["js", "ts", "mjs", "cjs", "mts", "json"]
                    .iter()
                    .any(|ending| tree.exists(&format!("{settings}.{ending}")))
            }) || (marks.generator == Generator::Eleventy && tree.exists(".eleventy.js"))
        };
        let by_script =
            |marks: &&Marks| package.scripts().any(|script| commands::calls(script, marks.program));
        let found = ALL.iter().find(by_package);
        let found = found.or_else(|| ALL.iter().find(by_file));
        found.or_else(|| ALL.iter().find(by_script)).map(|marks| marks.generator)
    }

    pub fn name(self) -> &'static str {
        self.marks().name
    }

    /// Returns the program that scripts call.
    pub fn program(self) -> &'static str {
        self.marks().program
    }

    fn marks(self) -> &'static Marks {
        ALL.iter().find(|marks| marks.generator == self).expect("each is in the list")
    }

    /// Returns the text of its settings.
    pub fn settings(self, tree: &SourceTree) -> &str {
        let own = self.marks().settings;
        let names: &[&str] = match self {
            Generator::SvelteKit => &["svelte.config", "vite.config"],
            Generator::Eleventy => &["eleventy.config", ".eleventy"],
            Generator::Remix | Generator::ReactRouter => &[own, "vite.config"],
            _ => &[own],
        };
        let paths = names.iter().flat_map(|name| {
            ["js", "ts", "mjs", "cjs", "mts", "cts"].map(|ending| format!("{name}.{ending}"))
        });
        paths.into_iter().find_map(|path| tree.text(&path)).unwrap_or_default()
    }
}
