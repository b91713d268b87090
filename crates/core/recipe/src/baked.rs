//! The variables that become part of a build, so that another value of one needs another build.
//! Each list is what the tool's own documentation says it reads while it builds. Knows files, not
//! frameworks, as one project has several tools.

use crate::source::SourceTree;

/// Files in the root that reveal a tool, each with what that tool takes from its environment. A `*`
/// at the end stands for any rest of a name.
const TOOLS: &[(&str, &[&str])] = &[
    (
        "package.json",
        &[
            // Next.js, Vite, Create React App, Vue CLI, Nuxt, Gatsby, Astro and SvelteKit, Expo,
            // Angular (by way of @ngx-env), Parcel and Redwood.
            "NEXT_PUBLIC_*",
            "VITE_*",
            "REACT_APP_*",
            "PUBLIC_*",
            "VUE_APP_*",
            "NUXT_PUBLIC_*",
            "NUXT_APP_*",
            "GATSBY_*",
            "EXPO_PUBLIC_*",
            "NG_APP_*",
            "STORYBOOK_*",
            "REDWOOD_ENV_*",
            "BASE_URL",
            "BASE_PATH",
            "ASSET_PREFIX",
            "NODE_ENV",
            "NODE_OPTIONS",
            "NPM_CONFIG_*",
            "npm_config_*",
        ],
    ),
    (
        "Gemfile",
        &[
            "ASSET_HOST",
            "RAILS_ASSET_HOST",
            "CDN_HOST",
            "RAILS_RELATIVE_URL_ROOT",
            "RAILS_ENV",
            "RACK_ENV",
            "BUNDLE_*",
            "GEM_HOME",
            "GEM_PATH",
        ],
    ),
    (
        "manage.py",
        &[
            "DJANGO_SETTINGS_MODULE",
            "STATIC_URL",
            "STATIC_HOST",
            "STATIC_ROOT",
            "DISABLE_COLLECTSTATIC",
        ],
    ),
    ("requirements.txt", PYTHON),
    ("pyproject.toml", PYTHON),
    ("Pipfile", PYTHON),
    ("go.mod", &["GOFLAGS", "GOOS", "GOARCH", "CGO_*"]),
    ("Cargo.toml", &["RUSTFLAGS", "CARGO_BUILD_*", "CARGO_PROFILE_*"]),
    ("pom.xml", &["MAVEN_*", "JAVA_HOME"]),
    ("build.gradle", &["GRADLE_OPTS", "JAVA_HOME"]),
    ("build.gradle.kts", &["GRADLE_OPTS", "JAVA_HOME"]),
    ("composer.json", &["COMPOSER", "COMPOSER_NO_DEV", "ASSET_URL", "MIX_*"]),
    ("mix.exs", &["MIX_ENV"]),
];

const PYTHON: &[&str] = &["PIP_*", "UV_*", "POETRY_*", "PIPENV_*"];

/// Returns the variables of the tools whose files are in the tree, and what the project's own file
/// adds.
pub fn variables(tree: &SourceTree, own: &[String]) -> Vec<String> {
    let there = TOOLS.iter().filter(|(file, _)| tree.exists(file));
    let known = there.flat_map(|(_, names)| names.iter().map(|name| (*name).to_owned()));
    let mut all: Vec<String> = known.chain(own.iter().cloned()).collect();
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Recipe;

    #[test]
    fn a_front_end_bakes_what_its_pages_show() {
        let tree = SourceTree::from_pairs([("package.json", "{}"), ("src/main.ts", "")]);
        let baked = variables(&tree, &["API_*".into()]);
        let recipe = Recipe { baked, ..Recipe::default() };
        for name in ["VITE_TITLE", "NEXT_PUBLIC_API", "NODE_ENV", "API_URL"] {
            assert!(recipe.bakes(name), "{name}");
        }
        for name in ["DATABASE_URL", "SECRET_KEY_BASE", "ASSET_HOST", "VITE", "BASE_URL_2"] {
            assert!(!recipe.bakes(name), "{name}");
        }
    }

    #[test]
    fn a_project_without_tools_bakes_nothing() {
        assert!(variables(&SourceTree::from_pairs([("app.py", "")]), &[]).is_empty());
    }
}
