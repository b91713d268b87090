//! Large values, piece by piece in both directions: no value is in memory as a whole.

use std::io;

use store_core::resp::ProtocolError;
use store_core::resp::request::{Parsed, Requests};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::{Connection, PAUSE_MAX, Problem, Words};
use model::value::VALUE_BYTES_MAX;
use store::values::blocking;
use store::{StoreError, Submission, Submitted, Value, ValueWriter};

/// The size in bytes of a piece; one is in memory for each direction of each large transfer.
const PIECE_BYTES: usize = 256 << 10;

impl Connection {
    /// Receives a value that follows on the connection, and the rest of the command behind it.
    /// `input` holds what has come of it, and afterwards what comes behind. An error is reported
    /// when all of the value has passed, so that the client and the server agree on where they are.
    pub(super) async fn set_streamed(
        &mut self,
        key: Vec<u8>,
        input: &mut Vec<u8>,
        length: u64,
        options: usize,
    ) -> io::Result<()> {
        if length > VALUE_BYTES_MAX {
            let text = format!("ERR a value has at most {VALUE_BYTES_MAX} bytes");
            self.replies.error(&text);
            self.closing = true;
            return Ok(());
        }
        let key = match self.rights {
            super::Rights::None => {
                Err(Problem("NOAUTH Authentication required: AUTH user token".into()))
            }
            super::Rights::Application(_) => Err(super::spaces::too_large()),
            _ => self.key(&key, true),
        };
        let mut writer = match &key {
            Ok(key) if key.is_local() => Err(Problem::error("notes are small; see CORTEX.HELP")),
            Ok(_) => self.context.store.writer().await.map_err(Problem::from),
            Err(Problem(text)) => Err(Problem(text.clone())),
        };
        let mut left = length;
        while left > 0 {
            if input.is_empty() {
                self.read_piece(input, left).await?;
            }
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
            let piece: Vec<u8> = input.drain(..count).collect();
            left -= count as u64;
            writer = match writer {
                Ok(writer) => put(writer, piece).await.map_err(Problem::from),
                failed => failed,
            };
        }
        while input.len() < 2 {
            self.read_piece(input, 2).await?;
        }
        if input.drain(..2).as_slice() != b"\r\n" {
            self.replies.error(&format!("ERR {}", ProtocolError::End));
            self.closing = true;
            return Ok(());
        }
        let Some((requests, used)) = self.read_options(input, options).await? else {
            return Ok(());
        };
        let done = match (key, writer) {
            (Ok(key), Ok(writer)) => {
                let words = Words { requests: &requests, input };
                self.set_file(key, writer, words).await
            }
            (_, Err(problem)) | (Err(problem), _) => Err(problem),
        };
        input.drain(..used);
        match done {
            Ok(()) => self.replies.ok(),
            Err(Problem(text)) => self.replies.error(&text),
        }
        Ok(())
    }

    async fn read_options(
        &mut self,
        input: &mut Vec<u8>,
        options: usize,
    ) -> io::Result<Option<(Requests, usize)>> {
        let mut requests = Requests::default();
        requests.expect_options(options);
        loop {
            match requests.parse(input) {
                Ok(Parsed::Command { used }) => return Ok(Some((requests, used))),
                Ok(Parsed::Incomplete) => self.read_piece(input, PIECE_BYTES as u64).await?,
                Ok(Parsed::Streamed { .. }) | Err(_) => {
                    self.replies.error(&format!("ERR {}", ProtocolError::Command));
                    self.closing = true;
                    return Ok(None);
                }
            }
        }
    }

    async fn set_file(
        &mut self,
        key: model::Key,
        writer: ValueWriter,
        words: Words<'_>,
    ) -> Result<(), Problem> {
        let terms = self.terms(words, 0)?;
        if terms.get {
            return Err(Problem::error("GET goes with small values only; GET the key first"));
        }
        let mut expires = terms.expires;
        if terms.keep {
            let entry = self.context.store.lookup(&key).await?;
            expires = entry.and_then(|entry| entry.expires);
        }
        let file = blocking(move || writer.finish()).await?;
        let change = Submitted::File { file, expires };
        self.context.store.write(Submission { key, change, only_over: None }).await?;
        Ok(())
    }

    async fn read_piece(&mut self, input: &mut Vec<u8>, wanted: u64) -> io::Result<()> {
        let room = usize::try_from(wanted).unwrap_or(usize::MAX).clamp(1, PIECE_BYTES);
        let mut piece = vec![0; room];
        let read = timeout(PAUSE_MAX, self.wire.read(&mut piece)).await;
        match read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                input.extend_from_slice(&piece[..count]);
                Ok(())
            }
        }
    }

    /// Sends a large value from wherever its bytes are. An error after the first byte ends the
    /// connection: the client counts on the length.
    pub(super) async fn send_large(&mut self, value: Value) -> io::Result<Result<(), Problem>> {
        let mut reader = match value.reader().await {
            Ok(Some(reader)) => reader,
            Ok(None) => return Ok(Err(Problem::error("a small value has no reader"))),
            Err(error) => return Ok(Err(error.into())),
        };
        self.replies.bulk_head(reader.size());
        while let Some(piece) = reader.next().await.map_err(io::Error::other)? {
            self.replies.bytes.extend_from_slice(&piece);
            self.send().await?;
        }
        self.replies.bytes.extend_from_slice(b"\r\n");
        Ok(Ok(()))
    }
}

async fn put(mut writer: ValueWriter, piece: Vec<u8>) -> Result<ValueWriter, StoreError> {
    blocking(move || {
        writer.write(&piece)?;
        Ok(writer)
    })
    .await
}
