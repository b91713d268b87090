//! What stands between clients and an application that runs: it may ask them for a password, and
//! may be closed for maintenance. Decides for each request from the specification alone; routers
//! ask on behalf of clients, never of other routers, which have asked already.

use std::sync::Arc;

use model::ApplicationSpec;
use model::application::Password;

/// The state of an application's gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// Whether it is closed for maintenance.
    pub is_closed: bool,
    /// The password that clients have to know, before they see whether it is closed.
    pub password: Option<Arc<Password>>,
}

/// What becomes of a request at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    Open,
    /// It is answered that the application is closed for maintenance.
    Closed,
}

impl Gate {
    pub fn of(spec: &ApplicationSpec) -> Gate {
        Gate {
            is_closed: spec.maintenance.is_some(),
            password: spec.password.clone().map(Arc::new),
        }
    }

    /// Returns whether every request passes, so that nothing need be asked.
    pub fn is_open(&self) -> bool {
        !self.is_closed && self.password.is_none()
    }

    /// Decides about a request that knows the password, if there is one. Probes of others go on, by
    /// the path that the release names: what watches an application is to see whether it is well,
    /// not whether it is closed.
    pub fn passage(&self, method: &str, target: &[u8], health_path: Option<&str>) -> Passage {
        if !self.is_closed {
            return Passage::Open;
        }
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        // A probe of the first page would open that to everybody.
        let health_path = health_path.filter(|path| *path != "/").map(str::as_bytes);
        let is_probe = matches!(method, "GET" | "HEAD") && health_path == Some(path);
        if is_probe { Passage::Open } else { Passage::Closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;

    #[test]
    fn a_password_keeps_requests_from_passing_unasked() {
        let mut spec = ApplicationSpec::new(Timestamp(1));
        let (salt, hash) = (String::new(), String::new());
        spec.password = Some(Password { since: Timestamp(2), salt, hash, rounds: 1 });
        let gate = Gate::of(&spec);
        assert!(!gate.is_open() && !gate.is_closed);
        assert_eq!(gate.passage("GET", b"/", None), Passage::Open, "it is not closed");
    }

    #[test]
    fn an_application_that_is_closed_lets_probes_through_and_nothing_else() {
        let mut spec = ApplicationSpec::new(Timestamp(1));
        let open = Gate::of(&spec);
        assert!(open.is_open() && open == Gate::default());
        assert_eq!(open.passage("POST", b"/", None), Passage::Open);
        spec.maintenance = Some(Timestamp(2));
        let closed = Gate::of(&spec);
        for (method, target, health, expected) in [
            ("GET", "/", None, Passage::Closed),
            ("GET", "/up", None, Passage::Closed),
            ("GET", "/up", Some("/up"), Passage::Open),
            ("HEAD", "/up?deep=1", Some("/up"), Passage::Open),
            ("POST", "/up", Some("/up"), Passage::Closed),
            ("GET", "/up/", Some("/up"), Passage::Closed),
            ("GET", "/upper", Some("/up"), Passage::Closed),
            ("GET", "/", Some("/"), Passage::Closed),
        ] {
            let passage = closed.passage(method, target.as_bytes(), health);
            assert_eq!(passage, expected, "{method} {target} with {health:?}");
        }
    }
}
