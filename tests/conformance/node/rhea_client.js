// Scenarios for tests/conformance/test_amqp_rhea.py, run with rhea: node rhea_client.js SCENARIO JSON
// Prints one JSON value.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const rhea = require('rhea');

const scenario = process.argv[2];
const given = JSON.parse(process.argv[3]);

function connect(container, extra = {}) {
  return new Promise((resolve, reject) => {
    const options = {
      host: '127.0.0.1',
      port: given.port,
      username: given.user,
      password: given.password,
      reconnect: false,
      ...extra,
    };
    const connection = container.connect(options);
    connection.once('connection_open', () => resolve(connection));
    connection.once('connection_error', (context) => reject(context.connection.error || context.error));
    connection.once('disconnected', (context) => reject(context.error || new Error('disconnected')));
    container.once('error', reject);
  });
}

const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function send(connection, address, messages) {
  const sender = connection.open_sender(typeof address === 'string' ? address : { target: address });
  await new Promise((resolve, reject) => {
    sender.once('sendable', resolve);
    sender.once('sender_error', () => reject(sender.error));
  });
  for (const message of messages) {
    sender.send(message);
    await once(sender, 'accepted');
  }
  sender.close();
}

function receive(connection, source, count, options = {}) {
  return new Promise((resolve, reject) => {
    const found = [];
    const receiver = connection.open_receiver({ source, credit_window: 100, ...options });
    receiver.on('message', (context) => {
      found.push(context.message);
      if (found.length === count) {
        receiver.once('receiver_close', () => resolve(found));
        receiver.close();
      }
    });
    receiver.once('receiver_error', () => reject(receiver.error));
  });
}

async function over(extra) {
  // Sends and receives one message over a connection with these options; says how it went.
  try {
    const connection = await connect(rhea.create_container(), extra);
    await send(connection, given.address, [{ body: 'x', durable: true }]);
    const [message] = await receive(connection, given.address, 1);
    connection.close();
    return message.body;
  } catch (error) {
    return `refused: ${error && (error.condition || error.message || error)}`;
  }
}

// SCRAM-SHA-256 (RFC 5802, RFC 7677) as a mechanism of rhea's.
function scram(username, password) {
  let nonce;
  let first;
  return {
    start(callback) {
      nonce = crypto.randomBytes(18).toString('base64');
      first = `n=${username.replace(/=/g, '=3D').replace(/,/g, '=2C')},r=${nonce}`;
      callback(undefined, `n,,${first}`);
    },
    step(challenge, callback) {
      const text = challenge.toString();
      if (text.startsWith('v=')) {
        return callback(undefined, '');
      }
      const fields = Object.fromEntries(text.split(',').map((field) => [field[0], field.slice(2)]));
      if (!fields.r.startsWith(nonce)) {
        return callback(new Error('the server changed the nonce'));
      }
      const salted = crypto.pbkdf2Sync(password, Buffer.from(fields.s, 'base64'), Number(fields.i), 32, 'sha256');
      const hmac = (key, data) => crypto.createHmac('sha256', key).update(data).digest();
      const clientKey = hmac(salted, 'Client Key');
      const stored = crypto.createHash('sha256').update(clientKey).digest();
      const bare = `c=biws,r=${fields.r}`;
      const signature = hmac(stored, `${first},${text},${bare}`);
      const proof = Buffer.from(clientKey.map((byte, index) => byte ^ signature[index]));
      callback(undefined, `${bare},p=${proof.toString('base64')}`);
    },
  };
}

const scenarios = {
  plain: () => over({}),

  anonymous: () => over({ username: undefined, password: undefined }),

  scram() {
    const mechanisms = { 'SCRAM-SHA-256': () => scram(given.user, given.password) };
    return over({ password: undefined, sasl_mechanisms: mechanisms });
  },

  external() {
    const pem = fs.readFileSync(`${given.certificates}/client.pem`);
    const ca = fs.readFileSync(`${given.certificates}/ca.pem`);
    const tls = { transport: 'tls', key: pem, cert: pem, ca, servername: 'localhost', rejectUnauthorized: true };
    return over({ ...tls, username: undefined, password: undefined, enable_sasl_external: true });
  },

  tls() {
    const ca = fs.readFileSync(`${given.certificates}/ca.pem`);
    return over({ transport: 'tls', ca, servername: 'localhost', rejectUnauthorized: true });
  },

  async named() {
    // The name asked for (SNI) is also the one that the certificate must be for.
    const ca = fs.readFileSync(`${given.certificates}/ca.pem`);
    return over({ transport: 'tls', ca, servername: given.host, rejectUnauthorized: true });
  },

  async everything() {
    const connection = await connect(rhea.create_container());
    const message = {
      body: { text: 'ä', list: [1, true, null], nested: { a: 1.5 } },
      durable: true,
      priority: 6,
      message_id: 'id-1',
      correlation_id: 'c-1',
      subject: 's',
      reply_to: 'r',
      content_type: 'application/json',
      group_id: 'g',
      application_properties: { text: 'v', number: 42, flag: true },
    };
    await send(connection, given.address, [message]);
    const [got] = await receive(connection, given.address, 1);
    connection.close();
    return got;
  },

  async outcomes() {
    const connection = await connect(rhea.create_container());
    await send(connection, given.address, ['release', 'modify', 'reject', 'accept'].map((body) => ({ body })));
    const seen = [];
    await new Promise((resolve) => {
      const receiver = connection.open_receiver({ source: given.address, autoaccept: false, credit_window: 1 });
      const again = new Set();
      receiver.on('message', ({ message, delivery }) => {
        seen.push([message.body, message.delivery_count || 0]);
        if (message.body === 'accept' && again.size === 2) {
          delivery.accept();
          resolve();
        } else if (message.body === 'reject') {
          delivery.reject({ condition: 'test:refused' });
        } else if (!again.has(message.body) && message.body === 'release') {
          again.add(message.body);
          delivery.release();
        } else if (!again.has(message.body) && message.body === 'modify') {
          again.add(message.body);
          delivery.modified({ delivery_failed: true });
        } else {
          delivery.accept();
        }
      });
    });
    connection.close();
    await once(connection, 'connection_close');
    return seen;
  },

  async selector() {
    const connection = await connect(rhea.create_container());
    await send(connection, given.address, [1, 2, 3].map((n) => ({ body: n, application_properties: { n } })));
    const source = { address: given.address, filter: rhea.filter.selector('n > 2') };
    const found = await receive(connection, source, 1);
    connection.close();
    return found.map((message) => message.body);
  },

  async browse() {
    const connection = await connect(rhea.create_container());
    await send(connection, given.address, ['a', 'b'].map((body) => ({ body })));
    const browsed = await receive(connection, { address: given.address, distribution_mode: 'copy' }, 2);
    const consumed = await receive(connection, given.address, 2);
    connection.close();
    return [browsed, consumed].map((messages) => messages.map((message) => message.body));
  },

  async dynamic() {
    const connection = await connect(rhea.create_container());
    const receiver = connection.open_receiver({ source: { dynamic: true } });
    await once(receiver, 'receiver_open');
    const { address } = receiver.source;
    const got = new Promise((resolve) => receiver.once('message', ({ message }) => resolve(message.body)));
    await send(connection, address, [{ body: 'answer' }]);
    const body = await got;
    connection.close();
    return [typeof address, body];
  },

  async drain() {
    const connection = await connect(rhea.create_container());
    await send(connection, given.address, ['a', 'b'].map((body) => ({ body })));
    const receiver = connection.open_receiver({ source: given.address, credit_window: 0 });
    const found = [];
    receiver.on('message', ({ message }) => found.push(message.body));
    await once(receiver, 'receiver_open');
    const drained = once(receiver, 'receiver_drained');
    receiver.add_credit(10);
    receiver.drain_credit();
    await drained;
    connection.close();
    return found;
  },

  async durable() {
    // A subscription that waits for its subscriber: container id and link name say which.
    const container = rhea.create_container({ id: given.address });
    const source = {
      address: given.address,
      durable: 2,
      expiry_policy: 'never',
      capabilities: ['topic'],
    };
    const first = await connect(container);
    const receiver = first.open_receiver({ name: 'news', source });
    await once(receiver, 'receiver_open');
    receiver.detach();
    first.close();
    await once(first, 'connection_close');
    const other = await connect(rhea.create_container());
    await send(other, { address: given.address, capabilities: ['topic'] }, [{ body: 'while away', durable: true }]);
    other.close();
    const second = await connect(rhea.create_container({ id: given.address }));
    const found = await receive(second, source, 1, { name: 'news' });
    second.close();
    return found.map((message) => message.body);
  },

  async heartbeats() {
    const connection = await connect(rhea.create_container(), { idle_time_out: 2000 });
    await pause(5000); // rhea ends the connection when the broker is silent for 2 s
    await send(connection, given.address, [{ body: 'still here' }]);
    const [message] = await receive(connection, given.address, 1);
    const announced = connection.remote.open.idle_time_out > 0;
    connection.close();
    return [message.body, announced];
  },
};

Promise.resolve(scenarios[scenario]()).then(
  (result) => {
    console.log(JSON.stringify(result));
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
