//! PHP, by its own web server: one request at a time, so several instances. A page of ours does
//! what nginx or Apache would do in front of it.

mod front;
mod heroku;
mod htaccess;

use model::Recipe;
use model::release::{Portable, ProcessRecipe, Step};

use super::{Framework, RecipeError, shell_word, sqlite, web_only};
use crate::source::SourceTree;

/// The directories in which `index.php` may be, in order: those of Symfony, Laravel and the like
/// come before the root.
const DOCUMENT_ROOTS: &[&str] = &["public", "web", "www", "htdocs", "."];

/// The check of the code: a program with a syntax error must not replace one without.
const CHECK: &str = "foreach (file(\"php://stdin\", FILE_IGNORE_NEW_LINES) as $f) { try { \
    token_get_all(file_get_contents($f), TOKEN_PARSE); } catch (Error $e) { fwrite(STDERR, \
    \"$f, line {$e->getLine()}: {$e->getMessage()}\\n\"); exit(1); } }";

pub struct Php;

impl Framework for Php {
    fn name(&self) -> &'static str {
        "php"
    }

    fn looks_for(&self) -> &'static str {
        "index.php in the root or in public/"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        if let Some(asked) = heroku::asked_for(tree) {
            return Some(format!("the Procfile asks for {}", asked.server));
        }
        document_root(tree).map(|root| match root {
            "." => "index.php is in the root".into(),
            root => format!("{root}/index.php is there"),
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let root = match heroku::asked_for(tree) {
            Some(asked) => asked.document_root(tree)?,
            None => document_root(tree).map(str::to_owned).ok_or_else(|| {
                RecipeError("there is no index.php in the root or in public/".into())
            })?,
        };
        let mut build = Vec::new();
        if tree.exists("composer.json") && !tree.has_directory("vendor") {
            let options = "--no-dev --no-interaction --no-progress --optimize-autoloader --quiet";
            let command = format!(
                "env COMPOSER_CACHE_DIR=\"$XDG_CACHE_HOME/composer\" composer install {options}"
            );
            build.push(Step { name: "Installing PHP packages".into(), command });
        }
        let files = "find . -name '*.php' -not -path '*/vendor/*' -not -path '*/tests/*'";
        let command = format!("{files} | php -r {}", shell_word(CHECK));
        build.push(Step { name: "Checking the PHP files".into(), command });
        build.push(Step { name: "Preparing the server".into(), command: front::command() });
        Ok(Recipe {
            build,
            portable: Some(Portable::default()),
            processes: web_only(server(&root), Some(1)),
            persist: sqlite::named_in_code(tree, "*.php"),
            notes: htaccess::notes(tree, &root),
            ..Recipe::default()
        })
    }

    fn in_place_of(&self, tree: &SourceTree, command: &str) -> Option<(ProcessRecipe, String)> {
        let asked = heroku::parse(command)?;
        let root = asked.document_root(tree).ok()?;
        let web = web_only(server(&root), Some(1)).into_values().next()?;
        Some((web, asked.note(&root)))
    }
}

/// Returns the command that starts it. The page that stands in front is in the release's own
/// directory.
fn server(root: &str) -> String {
    let options = "-d display_errors=0 -d log_errors=1 -d expose_php=0";
    let (root, front) = (shell_word(root), front::FILE);
    format!("php {options} -S \"$HOST:$PORT\" -t {root} {front}")
}

fn document_root(tree: &SourceTree) -> Option<&'static str> {
    let holds = |root: &&&str| match **root {
        "." => tree.exists("index.php"),
        root => tree.exists(&format!("{root}/index.php")),
    };
    DOCUMENT_ROOTS.iter().find(holds).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], root: &str, steps: usize) {
        let tree = SourceTree::from_pairs(files.iter().copied());
        assert!(Php.detect(&tree).is_some(), "{files:?}");
        let recipe = Php.recipe(&tree).unwrap();
        let web = recipe.processes.into_values().next().unwrap();
        assert!(web.command.contains(&format!(" -t {root} ")), "{}", web.command);
        assert_eq!((web.concurrency, recipe.build.len()), (Some(1), steps), "{files:?}");
    }

    #[test]
    fn the_document_root_holds_the_index() {
        check(&[("index.php", "<?php")], ".", 2);
        check(&[("index.php", ""), ("public/index.php", ""), ("composer.json", "")], "public", 3);
        check(&[("web/index.php", ""), ("composer.json", ""), ("vendor/a.php", "")], "web", 2);
        assert_eq!(Php.detect(&SourceTree::from_pairs([("lib/a.php", "")])), None);
        assert!(Php.recipe(&SourceTree::new()).is_err());
    }

    #[test]
    fn servers_of_heroku_name_the_document_root() {
        let procfile = "web: vendor/bin/heroku-php-nginx -C nginx.conf src/web/\n";
        let files = [("Procfile", procfile), ("composer.json", "{}"), ("src/web/a.php", "")];
        check(&files, "src/web", 3);
        let tree = SourceTree::from_pairs(files);
        let (web, note) = Php.in_place_of(&tree, "heroku-php-apache2 src/web").unwrap();
        assert!(web.command.contains(" -t src/web ") && web.concurrency == Some(1));
        assert!(note.contains("heroku-php-apache2"), "{note}");
        assert_eq!(Php.in_place_of(&tree, "php -S 0.0.0.0:80"), None);
        let gone = [("Procfile", "web: heroku-php-apache2 gone/"), ("index.php", "")];
        let error = Php.recipe(&SourceTree::from_pairs(gone)).unwrap_err();
        assert!(error.0.contains("'gone/'"), "{}", error.0);
    }

    #[test]
    fn databases_named_in_code_are_kept() {
        let code = "<?php $db = new PDO('sqlite:guests.db');";
        let recipe = Php.recipe(&SourceTree::from_pairs([("index.php", code)])).unwrap();
        assert_eq!(recipe.persist, ["guests.db"]);
    }
}
