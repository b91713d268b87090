//! The commands about the connection itself: who the client is and which protocol it speaks.

use store_core::resp::Protocol;

use super::values::SYNTAX;
use super::{Connection, DEFAULT_USER, Door, Problem, Rights, Words};
use crate::access::LogInRefused;
use crate::clients;
use crate::clients::NAME_BYTES_MAX;
use crate::space::DATABASES;

/// The number of failed logins that ends a connection; tokens cannot be guessed anyway.
const FAILED_LOGINS_MAX: u32 = 8;

impl Connection {
    pub(super) fn ping(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let listening = self.subscriber.as_ref().is_some_and(|s| s.count() > 0);
        let argument = words.from(1).next();
        if listening && self.replies.protocol == Protocol::Resp2 {
            self.replies.array(2);
            self.replies.text("pong");
            self.replies.bulk(argument.unwrap_or_default());
        } else {
            match argument {
                Some(argument) => self.replies.bulk(argument),
                None => self.replies.simple("PONG"),
            }
        }
        Ok(())
    }

    pub(super) async fn auth(&mut self, words: Words<'_>) -> Result<(), Problem> {
        match words.len() {
            2 => self.log_in(DEFAULT_USER, words.get(1)).await?,
            3 => self.log_in(words.text(1)?, words.get(2)).await?,
            _ => return Err(Problem::error(SYNTAX)),
        }
        self.replies.ok();
        Ok(())
    }

    async fn log_in(&mut self, user: &str, token: &[u8]) -> Result<(), Problem> {
        let address = self.context.clients.row(self.id).address;
        let way = (self.door, address.as_str());
        let logged_in = self.context.access.log_in(way, user, token).await;
        let rights = match logged_in {
            Ok(rights) => rights,
            Err(refused) => {
                self.failed_logins += 1;
                self.closing = self.failed_logins >= FAILED_LOGINS_MAX;
                return Err(self.explain(refused));
            }
        };
        let user = match &rights {
            Rights::Application(space) => space.application.to_string(),
            _ => user.to_string(),
        };
        if self.door == Door::Applications {
            // What was subscribed to under another application's name is not this one's.
            self.subscriber = None;
        }
        self.rights = rights;
        self.context.clients.change(self.id, |row| row.user = user);
        Ok(())
    }

    fn explain(&self, refused: LogInRefused) -> Problem {
        let way_out = match (refused, self.door) {
            (LogInRefused::BelowOwner(name), _) => {
                return Problem(format!(
                    "NOPERM {name} is no owner of the platform, and the store is the owners' alone"
                ));
            }
            (LogInRefused::NotRecorded(error), _) => {
                return Problem::error(format!("this login cannot be recorded: {error:#}"));
            }
            (LogInRefused::WrongPassword, Door::Applications) => {
                "use the address in $CORTEX_BUS_URL as it is"
            }
            (LogInRefused::WrongPassword, Door::Local | Door::Tls) => {
                "say AUTH with the name and a token of an owner of the platform, or of a user that \
                 CORTEX.USER SET made"
            }
        };
        Problem(format!("WRONGPASS invalid username-password pair or user is disabled; {way_out}"))
    }

    pub(super) async fn hello(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let mut protocol = self.replies.protocol;
        if words.len() > 1 {
            protocol = match words.get(1) {
                b"2" => Protocol::Resp2,
                b"3" => Protocol::Resp3,
                _ => return Err(Problem("NOPROTO unsupported protocol version".into())),
            };
        }
        let mut at = 2;
        while at < words.len() {
            if words.is(at, "AUTH") && at + 2 < words.len() {
                self.log_in(words.text(at + 1)?, words.get(at + 2)).await?;
                at += 3;
            } else if words.is(at, "SETNAME") && at + 1 < words.len() {
                self.set_name(words.get(at + 1))?;
                at += 2;
            } else {
                return Err(Problem::error(SYNTAX));
            }
        }
        if matches!(self.rights, Rights::None) {
            return Err(Problem(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                 and select the RESP protocol version at the same time"
                    .into(),
            ));
        }
        self.replies.protocol = protocol;
        let resp = if protocol == Protocol::Resp3 { 3 } else { 2 };
        self.context.clients.change(self.id, |row| row.resp = resp);
        let replies = &mut self.replies;
        replies.map(7);
        replies.text("server");
        replies.text("cortex");
        replies.text("version");
        replies.text(super::describe::COMPATIBLE_VERSION);
        replies.text("proto");
        replies.integer(resp.into());
        replies.text("id");
        replies.integer(self.id as i64);
        replies.text("mode");
        replies.text("standalone");
        replies.text("role");
        replies.text("master");
        replies.text("modules");
        replies.array(0);
        Ok(())
    }

    pub(super) fn select(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let database = words.number(1).ok().and_then(|number| u8::try_from(number).ok());
        if let Rights::Application(space) = &mut self.rights
            && let Some(database) = database.filter(|database| *database < DATABASES)
        {
            space.database = database;
            self.replies.ok();
            return Ok(());
        }
        if database != Some(0) {
            return Err(Problem::error(
                "DB index is out of range: there is database 0; give keys a common prefix instead",
            ));
        }
        self.replies.ok();
        Ok(())
    }

    pub(super) fn reset(&mut self) -> Result<(), Problem> {
        (self.subscriber, self.watch) = (None, None);
        self.replies.protocol = Protocol::Resp2;
        self.rights = self.context.access.initial(self.door);
        self.context.clients.change(self.id, |row| {
            row.name.clear();
            row.user = DEFAULT_USER.into();
            row.resp = 2;
        });
        self.replies.simple("RESET");
        Ok(())
    }

    pub(super) fn quit(&mut self) -> Result<(), Problem> {
        self.closing = true;
        self.replies.ok();
        Ok(())
    }

    fn set_name(&mut self, name: &[u8]) -> Result<(), Problem> {
        let name = printable(name)?;
        self.context.clients.change(self.id, |row| row.name = name);
        Ok(())
    }

    pub(super) fn client(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let now = self.context.clock.now();
        let argument = words.from(2).next();
        if words.is(1, "ID") {
            self.replies.integer(self.id as i64);
        } else if words.is(1, "SETNAME") && words.len() == 3 {
            self.set_name(argument.unwrap_or_default())?;
            self.replies.ok();
        } else if words.is(1, "GETNAME") {
            match self.context.clients.row(self.id).name {
                name if name.is_empty() => self.replies.null(),
                name => self.replies.text(&name),
            }
        } else if words.is(1, "SETINFO") && words.len() == 4 {
            let value = printable(words.get(3))?;
            let version = words.is(2, "LIB-VER");
            if !version && !words.is(2, "LIB-NAME") {
                return Err(Problem::error("Unrecognized option in CLIENT SETINFO"));
            }
            self.context.clients.change(self.id, |row| {
                let field = if version { &mut row.library_version } else { &mut row.library };
                *field = value;
            });
            self.replies.ok();
        } else if words.is(1, "LIST") {
            let list = self.context.clients.list(now, self.own_user());
            self.replies.verbatim(&list);
        } else if words.is(1, "INFO") {
            let row = self.context.clients.row(self.id);
            let line = clients::line(self.id, &row, now) + "\n";
            self.replies.verbatim(&line);
        } else if words.is(1, "NO-EVICT") || words.is(1, "NO-TOUCH") {
            // Nothing is ever evicted, and nothing counts touches.
            self.replies.ok();
        } else if words.is(1, "REPLY") && words.is(2, "ON") {
            self.replies.ok();
        } else {
            return Err(Problem::error(
                "CLIENT has ID, SETNAME, GETNAME, SETINFO, LIST, INFO, NO-EVICT, NO-TOUCH and REPLY ON",
            ));
        }
        Ok(())
    }
}

fn printable(text: &[u8]) -> Result<String, Problem> {
    let fine = text.len() <= NAME_BYTES_MAX && text.iter().all(u8::is_ascii_graphic);
    let text = String::from_utf8_lossy(text).into_owned();
    let problem = "names of clients cannot contain spaces, newlines or special characters";
    fine.then_some(text).ok_or_else(|| Problem::error(problem))
}
