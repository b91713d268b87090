//! Heroku's servers for PHP in a Procfile: `web: heroku-php-apache2 public/`. They are not here;
//! the document root that they are given is.

use model::ProcessType;

use crate::frameworks::RecipeError;
use crate::manifest::relative_path;
use crate::procfile::{self, PROCFILE};
use crate::source::SourceTree;

/// Options that take a value.
const OPTIONS: &[&str] = &["-C", "-c", "-F", "-f", "-i", "-l", "-p"];

pub struct HerokuServer {
    pub server: String,
    /// The document root as it is written.
    root: String,
    /// The files that would change how it serves.
    ignored: Vec<String>,
}

/// Returns what the Procfile asks for.
pub fn asked_for(tree: &SourceTree) -> Option<HerokuServer> {
    let procfile = procfile::parse(tree.text(PROCFILE)?).ok()?;
    parse(procfile.processes.get(&ProcessType::web())?)
}

pub fn parse(command: &str) -> Option<HerokuServer> {
    let mut words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
    let server = words.find_map(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        name.starts_with("heroku-php-").then(|| name.to_owned())
    })?;
    let (mut root, mut ignored) = (String::from("."), Vec::new());
    while let Some(word) = words.next() {
        if OPTIONS.contains(&word) {
            ignored
                .extend(words.next().filter(|_| word != "-p" && word != "-l").map(str::to_owned));
        } else if !word.starts_with('-') {
            root = word.into();
        }
    }
    Some(HerokuServer { server, root, ignored })
}

impl HerokuServer {
    pub fn document_root(&self, tree: &SourceTree) -> Result<String, RecipeError> {
        let root = match self.root.trim_start_matches("./").trim_matches('/') {
            "" | "." => return Ok(".".into()),
            _ => relative_path(&self.root),
        };
        let root = root.map_err(|why| RecipeError(format!("{PROCFILE}: {why}")))?;
        match tree.has_directory(&root) {
            true => Ok(root),
            false => Err(RecipeError(format!(
                "{PROCFILE}: {} is to serve '{}', which is not there",
                self.server, self.root
            ))),
        }
    }

    pub fn note(&self, root: &str) -> String {
        let server = &self.server;
        let mut note =
            format!("{PROCFILE}: in place of {server}, PHP's own server serves '{root}'");
        if !self.ignored.is_empty() {
            note.push_str(&format!("; {} is not obeyed", self.ignored.join(", ")));
        }
        note
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_argument_is_the_document_root() {
        for (command, root, ignored) in [
            ("heroku-php-apache2", ".", 0),
            ("heroku-php-apache2 public/", "public/", 0),
            ("vendor/bin/heroku-php-nginx -C nginx.conf -v web", "web", 1),
            ("php -d a=b $(composer config bin-dir)/heroku-php-apache2 -i php.ini -p 80", ".", 1),
        ] {
            let asked = parse(command).unwrap();
            assert_eq!((asked.root.as_str(), asked.ignored.len()), (root, ignored), "{command}");
        }
        assert!(parse("php artisan serve").is_none());
    }
}
