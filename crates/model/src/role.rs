//! The roles of a node: what parts it runs. Written by each node in its own record; read by
//! placement, and by the code that shows nodes to people.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The node keeps a copy of the store.
    Store,
    /// The node runs instances.
    Agent,
    /// The node takes requests of the public.
    Router,
    Checker,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Store, Role::Agent, Role::Router, Role::Checker];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Store => "store",
            Role::Agent => "agent",
            Role::Router => "router",
            Role::Checker => "checker",
        }
    }
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RolesError {
    #[error("a node needs at least one role of 'store', 'agent', 'router' and 'checker'")]
    None,
    #[error(
        "'{0}' is no role: name some of 'store', 'agent', 'router' and 'checker', with commas \
         between them"
    )]
    Unknown(String),
}

/// A set of roles, never empty if a person chose them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<String>", from = "Vec<String>")]
pub struct Roles(BTreeSet<Role>);

impl Roles {
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// Returns the same roles but for one.
    pub fn with(&self, role: Role, has: bool) -> Roles {
        let mut roles = self.clone();
        if has {
            roles.0.insert(role);
        } else {
            roles.0.remove(&role);
        }
        roles
    }

    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|role| role.as_str().into()).collect()
    }
}

/// A node that says nothing runs everything.
impl Default for Roles {
    fn default() -> Roles {
        Roles(Role::ALL.into())
    }
}

impl From<Roles> for Vec<String> {
    fn from(roles: Roles) -> Vec<String> {
        roles.names()
    }
}

/// Roles of newer versions mean nothing here.
impl From<Vec<String>> for Roles {
    fn from(names: Vec<String>) -> Roles {
        let known = |name: &String| Role::ALL.into_iter().find(|role| role.as_str() == name);
        Roles(names.iter().filter_map(known).collect())
    }
}

impl FromStr for Roles {
    type Err = RolesError;

    fn from_str(text: &str) -> Result<Roles, RolesError> {
        if text.trim().is_empty() {
            return Err(RolesError::None);
        }
        let role = |name: &str| {
            let known = Role::ALL.into_iter().find(|role| role.as_str() == name.trim());
            let shown = || name.trim().escape_debug().take(80).collect();
            known.ok_or_else(|| RolesError::Unknown(shown()))
        };
        text.split(',').map(role).collect::<Result<_, _>>().map(Roles)
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, RolesError>) {
        let parsed = text.parse::<Roles>();
        assert_eq!(parsed.map(|roles| roles.to_string()), expected.map(String::from), "{text:?}");
    }

    #[test]
    fn any_roles_can_be_named_and_nothing_else() {
        check("agent", Ok("agent"));
        check("checker, store,store", Ok("store,checker"));
        check("store,agent,router,checker", Ok(&Roles::default().to_string()));
        check("", Err(RolesError::None));
        check("agent,", Err(RolesError::Unknown("".into())));
        check("Agent\n,cook", Err(RolesError::Unknown("Agent".into())));
    }

    #[test]
    fn roles_of_newer_versions_are_left_out() {
        let roles: Roles = serde_json::from_str(r#"["agent", "cook"]"#).unwrap();
        assert!(roles.has(Role::Agent) && !roles.has(Role::Store));
        assert_eq!(serde_json::to_string(&roles).unwrap(), r#"["agent"]"#);
    }
}
