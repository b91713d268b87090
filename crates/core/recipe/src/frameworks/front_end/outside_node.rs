//! Generators of sites outside the JavaScript world. Hugo, Jekyll, mdBook and Zola have to be on
//! the machine; MkDocs is installed as other Python packages are.

use std::collections::BTreeMap;

use model::Recipe;
use model::release::Step;

use super::Finding;
use super::text::join;
use crate::frameworks::{RecipeError, gems, site_mount, venv};
use crate::source::SourceTree;

const MKDOCS: &[&str] = &["mkdocs.yml", "mkdocs.yaml"];
const JEKYLL: &[&str] = &["_config.yml", "_config.yaml"];
const HUGO: &[&str] = &[
    "hugo.toml",
    "hugo.yaml",
    "hugo.yml",
    "hugo.json",
    "config.toml",
    "config.yaml",
    "config.yml",
];
const MDBOOK: &str = "book.toml";

/// Returns the file that names the generator, and the recipe.
pub fn of(tree: &SourceTree) -> Option<(String, Result<Recipe, RecipeError>)> {
    let first = |files: &[&'static str]| files.iter().copied().find(|file| tree.exists(file));
    if let Some(file) = first(MKDOCS) {
        return Some((format!("{file} names a site of MkDocs"), mkdocs(tree, file)));
    }
    if let Some(file) = first(JEKYLL).filter(|_| is_jekyll(tree)) {
        return Some((format!("{file} names a site of Jekyll"), Ok(jekyll(tree, file))));
    }
    if let Some(file) = first(HUGO) {
        let text = tree.text(file).unwrap_or_default();
        if text.contains("base_url") && tree.has_directory("templates") {
            return Some((
                format!("{file} names a site of Zola"),
                Ok(by_tool(tree, "zola", "public")),
            ));
        }
        let pages = ["content", "layouts", "themes", "archetypes"];
        if file.starts_with("hugo.") || pages.iter().any(|name| tree.has_directory(name)) {
            let output = setting(text, "publishDir").unwrap_or("public").to_owned();
            return Some((
                format!("{file} names a site of Hugo"),
                Ok(by_tool(tree, "hugo", &output)),
            ));
        }
    }
    let book = tree.exists(MDBOOK);
    book.then(|| (format!("{MDBOOK} names a book of mdBook"), Ok(by_tool(tree, "mdbook", "book"))))
}

fn is_jekyll(tree: &SourceTree) -> bool {
    gems::lists(tree, "jekyll")
        || gems::lists(tree, "github-pages")
        || ["_posts", "_layouts", "_includes"].iter().any(|name| tree.has_directory(name))
        || ["index.md", "index.html"]
            .iter()
            .any(|page| tree.text(page).is_some_and(|text| text.starts_with("---")))
}

/// Returns the value of `key: value` or `key = value` at the left margin.
fn setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?.trim_start();
        rest.strip_prefix([':', '='])
    })?;
    let value = rest.split(" #").next().unwrap_or(rest).trim();
    Some(value.trim_matches(['"', '\''])).filter(|value| !value.is_empty())
}

fn mkdocs(tree: &SourceTree, file: &str) -> Result<Recipe, RecipeError> {
    let text = tree.text(file).unwrap_or_default();
    let output = setting(text, "site_dir").and_then(|path| join("", path));
    let material = text.lines().any(|line| {
        let line = line.trim();
        line == "theme: material" || line == "name: material"
    });
    let extra: &[&str] = if material { &["mkdocs", "mkdocs-material"] } else { &["mkdocs"] };
    let mut recipe = Recipe { path: vec![venv::BIN.to_owned()], ..Recipe::default() };
    venv::install(tree, extra)?.give(&mut recipe);
    let command = format!("{}/mkdocs build --quiet", venv::BIN);
    recipe.build.push(Step { name: "Building the site".into(), command });
    Ok(with_pages(tree, recipe, &output.unwrap_or_else(|| "site".into())))
}

fn jekyll(tree: &SourceTree, file: &str) -> Recipe {
    let text = tree.text(file).unwrap_or_default();
    let output = setting(text, "destination").and_then(|path| join("", path));
    let output = output.unwrap_or_else(|| "_site".into());
    let mut environment = BTreeMap::from([("JEKYLL_ENV".to_owned(), "production".to_owned())]);
    let (program, command, mut build) = if tree.exists(gems::GEMFILE) {
        environment.extend(gems::environment());
        ("bundle", "bundle exec jekyll build", gems::install())
    } else {
        ("jekyll", "jekyll build", Vec::new())
    };
    build.insert(0, wanted(program, "Jekyll"));
    build.push(Step { name: "Building the site".into(), command: command.into() });
    with_pages(tree, Recipe { build, environment, ..Recipe::default() }, &output)
}

/// Returns the recipe for a program of the machine that builds by itself.
fn by_tool(tree: &SourceTree, program: &str, output: &str) -> Recipe {
    let command = match program {
        "hugo" => "hugo".to_owned(),
        program => format!("{program} build"),
    };
    let build = vec![wanted(program, program), Step { name: "Building the site".into(), command }];
    let output = join("", output).unwrap_or_else(|| "public".into());
    with_pages(tree, Recipe { build, ..Recipe::default() }, &output)
}

/// Returns a step that says what is missing, and the other way to publish the site.
fn wanted(program: &str, name: &str) -> Step {
    let command = format!(
        "command -v {program} >/dev/null || {{ echo '{program} is not on this machine: install it \
         for the user who runs Cortex (on Debian: apt-get install {}), or push the directory of \
         the site that you built yourself.' >&2; exit 1; }}",
        match program {
            "bundle" => "bundler",
            program => program,
        }
    );
    Step { name: format!("Looking for {name}"), command }
}

fn with_pages(tree: &SourceTree, mut recipe: Recipe, output: &str) -> Recipe {
    let finding = Finding::new(tree, Some(output));
    recipe.build.push(finding.step());
    recipe.statics = site_mount("/", output, None);
    recipe
}
