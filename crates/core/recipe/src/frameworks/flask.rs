//! Flask: the module and the variable are found by reading.

use model::Recipe;

use super::python::{gunicorn, path};
use super::python_code::find_made_by;
use super::{Framework, RecipeError, sqlite, venv, web_only};
use crate::procfile::PROCFILE;
use crate::source::SourceTree;

const CONSTRUCTORS: &[&str] = &["Flask"];

pub struct Flask;

impl Framework for Flask {
    fn name(&self) -> &'static str {
        "flask"
    }

    fn looks_for(&self) -> &'static str {
        "a *.py with 'app = Flask(...)' or a create_app() that makes one"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        find_made_by(tree, CONSTRUCTORS).map(|callable| {
            format!("{} makes the Flask application '{}'", callable.file, callable.name)
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let processes = match find_made_by(tree, CONSTRUCTORS) {
            Some(callable) => web_only(gunicorn(&callable), None),
            None if tree.exists(PROCFILE) => Default::default(),
            None => {
                let why =
                    "no file makes it: write 'app = Flask(__name__)' at the left margin of app.py";
                return Err(RecipeError(why.into()));
            }
        };
        // Flask has a place of its own for what is not code.
        let mut persist = vec!["instance".to_owned()];
        persist.extend(sqlite::named_in_code(tree, "*.py"));
        let mut recipe = Recipe { processes, path: path(true), persist, ..Recipe::default() };
        venv::install_with_gunicorn(tree, &["flask"])?.give(&mut recipe);
        Ok(recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, text: &str, expected: &str) {
        let tree = SourceTree::from_pairs([(file, text), ("requirements.txt", "flask\n")]);
        assert!(Flask.detect(&tree).unwrap().starts_with(file));
        let web = Flask.recipe(&tree).unwrap().processes.into_values().next().unwrap();
        assert!(web.command.ends_with(expected), "{file}: {}", web.command);
        assert_eq!((web.concurrency, web.default_count), (None, 1));
    }

    #[test]
    fn gunicorn_is_told_where_the_application_is() {
        check("app.py", "app = Flask(__name__)\n", "--threads 8 'app:app'");
        check("src/shop/web.py", "shop = Flask(1)\n", "--pythonpath src 'shop.web:shop'");
        check("shop/__init__.py", "def create_app():\n  a = Flask(1)\n", "'shop:create_app()'");
    }
}
