//! `package.json`, as far as frameworks ask for it: scripts, packages, and single texts.

use serde_json::Value;

use crate::source::SourceTree;

pub const PACKAGE_JSON: &str = "package.json";
const LISTS: &[&str] = &["dependencies", "devDependencies", "optionalDependencies"];

#[derive(Clone, Debug, Default)]
pub struct Package(Value);

impl Package {
    /// Reads the one in the root.
    pub fn read(tree: &SourceTree) -> Result<Package, String> {
        Package::at(tree, "")
    }

    /// Reads the one of a directory below the root; the empty path means the root.
    pub fn at(tree: &SourceTree, directory: &str) -> Result<Package, String> {
        let path = within(directory, PACKAGE_JSON);
        let text = tree.text(&path).ok_or(format!("{path} is missing or no text"))?;
        match serde_json::from_str(text.trim_start_matches('\u{feff}')) {
            Ok(package @ Value::Object(_)) => Ok(Package(package)),
            Ok(_) => Err(format!("{path} holds no JSON object")),
            Err(error) => Err(format!("{path} is not valid JSON: {error}")),
        }
    }

    pub fn script(&self, name: &str) -> Option<&str> {
        self.text(&["scripts", name])
    }

    /// Returns the texts of all scripts.
    pub fn scripts(&self) -> impl Iterator<Item = &str> {
        let scripts = self.0.get("scripts").and_then(Value::as_object);
        scripts.into_iter().flat_map(|scripts| scripts.values().filter_map(Value::as_str))
    }

    pub fn text(&self, path: &[&str]) -> Option<&str> {
        let value = path.iter().try_fold(&self.0, |value, key| value.get(key))?;
        value.as_str().map(str::trim).filter(|text| !text.is_empty())
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.get(key).is_some()
    }

    /// Returns whether a package is listed, for running or for development.
    pub fn lists(&self, name: &str) -> bool {
        self.version(name).is_some()
    }

    pub fn version(&self, name: &str) -> Option<&str> {
        LISTS.iter().find_map(|list| self.0.get(list)?.get(name)?.as_str())
    }

    pub fn lists_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.lists(name))
    }
}

/// Returns a path in a directory; the empty directory is the root.
pub fn within(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}
