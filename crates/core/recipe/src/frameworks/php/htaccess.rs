//! Notes for people on what Apache's own files ask for and does not happen here. Whether such a
//! file lets anybody in is obeyed, when a request comes: `front.php` reads that.

use crate::source::SourceTree;

/// Files that get a note each; more of them are packages' own.
const FILES_MAX: usize = 5;
/// Directives named of one file.
const NAMED_MAX: usize = 8;
const SHOWN_CHARS_MAX: usize = 40;

/// Directives that are obeyed, or without which all is the same.
const OBEYED: &[&str] =
    &["require", "order", "deny", "allow", "satisfy", "directoryindex", "directoryslash"];

pub fn notes(tree: &SourceTree, root: &str) -> Vec<String> {
    let below = if root == "." { "" } else { root };
    let named = tree.under(below).filter(|(path, _)| path.rsplit('/').next() == Some(".htaccess"));
    let mut notes = Vec::new();
    for (path, file) in named {
        let Some(text) = file.text.as_deref() else { continue };
        let (ignored, lets_some_in) = read(text);
        if !ignored.is_empty() {
            let named = ignored.join(", ");
            notes.push(format!(
                "{path}: {named} is not obeyed: what exists is served, everything else goes to \
                 index.php"
            ));
        }
        if lets_some_in {
            notes.push(format!("{path}: only some are let in, and here nobody is"));
        }
    }
    let ini = tree.under(below).filter(|(path, _)| path.rsplit('/').next() == Some(".user.ini"));
    notes.extend(ini.map(|(path, _)| format!("{path} is not obeyed: set it with 'php -d'")));
    let more = notes.len().saturating_sub(FILES_MAX);
    notes.truncate(FILES_MAX);
    if more > 0 {
        notes.push(format!("there are {more} more remarks of this kind"));
    }
    notes
}

/// Returns the directives that nothing here obeys, each once; and whether some people were to be
/// let in.
fn read(text: &str) -> (Vec<String>, bool) {
    let (mut ignored, mut lets_some_in) = (Vec::<String>::new(), false);
    for line in text.lines().map(str::trim) {
        let mut words = line.split_whitespace();
        let Some(first) = words.next().filter(|word| !word.starts_with(['#', '<'])) else {
            continue;
        };
        let (name, rest) = (first.to_ascii_lowercase(), words.collect::<Vec<_>>().join(" "));
        let rest = rest.to_ascii_lowercase();
        lets_some_in |= match name.as_str() {
            "require" => rest != "all granted" && rest != "all denied",
            "allow" => rest != "from all",
            _ => false,
        };
        let harmless = OBEYED.contains(&name.as_str())
            || name == "options"
                && rest
                    .split(' ')
                    .all(|one| !one.to_lowercase().contains("index") || one.starts_with('-'));
        let shown: String =
            first.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
        if !harmless && !ignored.contains(&shown) {
            ignored.push(shown);
        }
    }
    if ignored.len() > NAMED_MAX {
        ignored.truncate(NAMED_MAX);
        ignored.push("and more".into());
    }
    (ignored, lets_some_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_obeyed_is_named_once() {
        let laravel = "<IfModule mod_rewrite.c>\n Options -MultiViews -Indexes\n RewriteEngine On\n\
            # a\n RewriteCond %{REQUEST_FILENAME} !-f\n RewriteRule ^ index.php [L]\n\
            RewriteRule ^ b [L]\n</IfModule>\nphp_value memory_limit 1G\n";
        let files = [
            ("public/.htaccess", laravel),
            ("public/storage/.htaccess", "Order allow,deny\nDeny from all\n"),
            ("public/staff/.htaccess", "AuthType Basic\nRequire valid-user\n"),
            (".htaccess", "Redirect / /public/"),
            ("public/.user.ini", "memory_limit = 1G"),
        ];
        let notes = notes(&SourceTree::from_pairs(files), "public");
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert!(notes[0].starts_with(
            "public/.htaccess: RewriteEngine, RewriteCond, RewriteRule, php_value is not obeyed"
        ));
        assert!(notes[1].contains("staff/.htaccess: AuthType is not"), "{}", notes[1]);
        assert!(notes[2].contains("here nobody is") && notes[3].contains(".user.ini"));
    }

    #[test]
    fn only_the_first_few_remarks_are_shown() {
        let files: Vec<_> =
            (0..20).map(|n| (format!("{n:02}/.htaccess"), "Header set A b")).collect();
        let notes = notes(&SourceTree::from_pairs(files), ".");
        assert_eq!(notes.len(), FILES_MAX + 1, "{notes:?}");
        let many: String = (0..50).map(|n| format!("Directive{n} x\n")).collect();
        assert_eq!(read(&many).0.len(), NAMED_MAX + 1);
    }
}
