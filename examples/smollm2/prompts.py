"""Real, varied prompts from about 20 to 600 tokens long, shortest first."""

from dataclasses import dataclass

from .tokenizer import DEFAULT_SYSTEM


@dataclass(frozen=True)
class Prompt:
    """One request to the model; `tokenizer.encode_chat(p.user, p.system)` gives its tokens."""

    name: str
    user: str
    system: str = DEFAULT_SYSTEM
    max_new_tokens: int = 48


PROMPTS: tuple[Prompt, ...] = (
    Prompt("greeting", "Say hello.", system="Be brief.", max_new_tokens=16),
    Prompt("capital", "What is the capital of France?", max_new_tokens=16),
    Prompt(
        "translation",
        'Translate into French: "Good morning, where is the train station, please? '
        'My train leaves at 7:45."',
    ),
    Prompt(
        "arithmetic",
        "A baker sells 12 rolls at 3 coins each and 5 loaves at 14 coins each. She pays 40 coins "
        "for flour and 9 coins for firewood. How many coins does she have left at the end of the "
        "day? Show the steps.",
    ),
    Prompt(
        "python",
        "What does this Python function return for n = 10, and what is it called?\n\n"
        "```python\n"
        "def f(n):\n"
        "    a, b = 0, 1\n"
        "    while n > 0:\n"
        "        a, b = b, a + b\n"
        "        n -= 1\n"
        "    return a\n"
        "```\n"
        "Explain it line by line, please.",
    ),
    Prompt(
        "recipe",
        "I have these things in the kitchen: six eggs, half an onion, two boiled potatoes, a bit "
        "of hard cheese, some parsley that has seen better days, olive oil, salt and pepper. "
        "I have one pan, no oven, and twenty minutes. Suggest one dish for two people. First "
        "list the amounts, then write numbered steps of one sentence each, and say at which "
        "step the heat must be turned down so that nothing burns.",
    ),
    Prompt(
        "letter",
        "Write a polite letter to my landlord, Mr. Okafor. These are the facts: the radiator in "
        "the bedroom has been cold since the 3rd of November; I called the office twice, on the "
        "5th and on the 11th, and was told that somebody would come; nobody came. It is now "
        "8 degrees outside at night, and my daughter, who is four, has moved into the living "
        "room with her mattress. I don't want a quarrel. I want a date, and if there is no date "
        "by Friday, I want to order the repair myself and take the cost off the next rent. "
        "Keep it under 150 words and end on a friendly note.",
    ),
    Prompt(
        "sql",
        "We keep a small library in three tables:\n\n"
        "CREATE TABLE readers (id INTEGER PRIMARY KEY, name TEXT, joined DATE);\n"
        "CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, author TEXT, shelf TEXT);\n"
        "CREATE TABLE loans (book INTEGER REFERENCES books, reader INTEGER REFERENCES readers,\n"
        "                    taken DATE NOT NULL, returned DATE);\n\n"
        "A book that is still out has NULL in the column returned. Write one query that lists "
        "every reader who has had a book for more than thirty days, with the title, the day it "
        "was taken and the number of days since then, the longest loan first. Then write a "
        "second query that counts, for each shelf, how many of its books are out at the moment; "
        "shelves with no book out must appear too, with a zero. Say in one sentence each which "
        "index would help the queries most once the table of loans has grown to ten million "
        "rows, and why.",
    ),
    Prompt(
        "logs",
        "Here is the end of a server's log. What went wrong first, and what only followed from "
        "it?\n\n"
        "09:14:02 INFO  worker 3 accepted connection from 10.0.4.17:51322\n"
        "09:14:02 INFO  worker 3 request GET /reports/2024/q3 started\n"
        "09:14:05 WARN  db pool: 20 of 20 connections in use, request waits\n"
        "09:14:09 WARN  db pool: 20 of 20 connections in use, request waits\n"
        "09:14:12 ERROR worker 3 request GET /reports/2024/q3 timed out after 10 s\n"
        "09:14:12 INFO  worker 3 closed connection\n"
        "09:14:13 ERROR health check failed: database not reachable within 1 s\n"
        "09:14:13 INFO  supervisor: restarting all workers\n",
    ),
    Prompt(
        "meeting",
        "Turn these notes from a meeting into a list of decisions and a list of tasks with a "
        "name and a date each. Leave out everything that is only talk.\n\n"
        "Monday, 10:00. Present: Ines, Tomasz, Abena, Li. Ines opened with the numbers: the "
        "harbour tour sold 412 tickets in August, the night walk only 61. Tomasz said that the "
        "night walk suffers from the street works and that he would rather stop it than run it "
        "half empty. Long discussion about whether people know of it at all. Abena remembered "
        "that the posters still show last year's meeting point. Agreed to stop the night walk "
        "from the 1st of October and to bring it back in April. Li will tell the three guides "
        "this week. Abena orders new posters, with the right meeting point, by the 20th of "
        "September. There was a complaint about the audio sets: four of them crackle. Tomasz "
        "thinks that it is the batteries. He will test them until Thursday, and if it is not "
        "the batteries, Ines may spend up to 300 euros on new ones. The question of a Spanish "
        "tour was put off again. Next meeting in two weeks, Li can't come.",
    ),
    Prompt(
        "history",
        "Read the text and answer the three questions below it.\n\n"
        "Before there were clocks that a ship could trust, a sailor could find out how far north "
        "or south he was, but not how far east or west. The height of the sun at noon gave him "
        "the latitude. For the longitude he needed to know the time at some fixed place, such as "
        "the harbour he had left, and to compare it with the time where he was: every hour of "
        "difference is fifteen degrees. The pendulum clocks of the seventeenth century kept good "
        "time on land, but on a rolling deck, in heat and cold and salt air, they were useless. "
        "In 1714, after a fleet had run onto the rocks of Scilly and lost some two thousand men, "
        "the British parliament offered twenty thousand pounds to anyone who could find the "
        "longitude to within half a degree. Astronomers hoped to read the time from the moon, "
        "which moves against the stars like the hand of a clock. A carpenter from Yorkshire, "
        "John Harrison, believed in springs and wheels. He built three large machines over "
        "thirty years, each better than the last, and then gave up their whole design for a "
        "watch that lay in the palm of a hand. On a voyage to Jamaica, which took eighty-one "
        "days, it lost five seconds.\n\n"
        "1. Why was latitude the easier problem?\n"
        "2. How many degrees is a time difference of two and a half hours?\n"
        "3. What did Harrison change in the end?",
    ),
    Prompt(
        "review",
        "Please review this C++ class. Point out bugs first, then style.\n\n"
        "```cpp\n"
        "class RingBuffer {\n"
        " public:\n"
        "  explicit RingBuffer(size_t capacity) : data_(new char[capacity]), size_(capacity) {}\n"
        "  ~RingBuffer() { delete data_; }\n\n"
        "  bool push(const char* bytes, size_t n) {\n"
        "    if (n > size_ - (head_ - tail_)) return false;\n"
        "    for (int i = 0; i < n; i++) {\n"
        "      data_[head_ % size_] = bytes[i];\n"
        "      head_++;\n"
        "    }\n"
        "    return true;\n"
        "  }\n\n"
        "  size_t pop(char* out, size_t n) {\n"
        "    size_t count = 0;\n"
        "    while (tail_ <= head_ && count < n) {\n"
        "      out[count++] = data_[tail_++ % size_];\n"
        "    }\n"
        "    return count;\n"
        "  }\n\n"
        " private:\n"
        "  char* data_;\n"
        "  size_t size_;\n"
        "  size_t head_ = 0;\n"
        "  size_t tail_ = 0;\n"
        "};\n"
        "```\n\n"
        "One thread pushes and another one pops. The buffer is copied once, when the connection "
        "is handed from the acceptor to the worker. We see two kinds of crashes: a double free "
        "shortly after a connection was accepted, and, much more rarely, a byte too many at the "
        "end of a message, which the parser then takes for the start of the next one. Capacity "
        "is always a power of two.",
    ),
    Prompt(
        "story",
        "Summarise the following story in three sentences, then suggest a title.\n\n"
        "The ferry to the island ran twice a day, and Marta had missed the first one by the "
        "length of the quay. She sat down on a bollard, put the cello case between her knees, "
        "and counted what she had: a sandwich, a letter, and four hours. The letter was from her "
        "uncle. It said that the piano in the old school had not been tuned since the war, that "
        "nobody on the island could tune it, and that the children would sing on Sunday whether "
        "it was in tune or not. It did not say please. Her uncle never did.\n\n"
        "At noon a fisherman came by and asked what was in the box. A very large violin, she "
        "said. He thought about this. Then he told her that he was going over anyway, with six "
        "crates of lemonade for the feast, and that there was room between the crates if she "
        "did not mind the smell of diesel. Half way across, the engine coughed and stopped. The "
        "fisherman took off the cover, looked in, and closed it again. It would start when it "
        "had cooled down, he said, it always did. So they drifted. The sea was as flat as a "
        "table, and there was no sound at all, and after a while Marta unpacked the cello, "
        "because the silence seemed to be waiting for something. She played the slow piece that "
        "she had learned first, and then the quick one that she had never quite learned. The "
        "fisherman opened two bottles of lemonade. When she stopped, he tried the engine, and it "
        "started.\n\n"
        "On Sunday the children sang. The piano was still out of tune: she had found the "
        "hammers eaten by moths and had closed the lid again. But the cello stood where the "
        "piano should have been, and in the third row sat a man with oil on his hands, who told "
        "everybody who would listen that he had heard it before.",
        max_new_tokens=64,
    ),
    Prompt(
        "contract",
        "Explain to somebody without legal training what the following house rules of a shared "
        "workshop mean. Answer these points: what may I do alone, what do I need another person "
        "for, and what happens if I break something?\n\n"
        "1. Members may use the workshop on any day between 7:00 and 22:00. Machines that can be "
        "heard in the yard (table saw, planer, compressor, angle grinder) must not run before "
        "9:00, between 12:30 and 14:00, or after 19:00, and on Sundays not at all.\n"
        "2. The table saw, the planer and the lathe may be used only by members who have been "
        "introduced to them by one of the wardens and whose name stands on the list at the door. "
        "The introduction is valid for two years. Nobody may use these three machines while "
        "alone in the building. Two people count as company only if each knows where the main "
        "switch is.\n"
        "3. Hand tools may be taken home for up to three days if they are entered in the book. "
        "Measuring tools, the sharpening stones and everything with a red dot stay in the "
        "workshop.\n"
        "4. Whoever damages a tool writes it in the book on the same day. For damage by ordinary "
        "wear the association pays. For damage by carelessness the member pays half, but never "
        "more than 80 euros. For damage that was not written down, the member pays all of it. "
        "The wardens decide which case it is; a member who disagrees may put the question to the "
        "next general meeting, whose decision is final.\n"
        "5. Wood in the rack belongs to the person whose name is on it. Wood without a name is "
        "free for everybody after four weeks. Off-cuts shorter than a forearm go into the box "
        "beside the stove and may be burned by anyone who also empties the ash.\n"
        "6. Solvents, oil and oily rags go into the metal bin with the lid, never into the waste "
        "paper, and the bin is carried out into the yard every evening by the last one to leave. "
        "The last one to leave also turns off the main switch, closes the valve of the "
        "compressor and signs the sheet.\n"
        "7. Guests are welcome. They may watch, hold, carry and sweep, but they don't run "
        "machines. Children under twelve stay on the near side of the yellow line and go home "
        "with the person they came with.\n"
        "8. The key is lent, not given. A lost key costs 25 euros; a key that was lent on to "
        "somebody who is not a member costs the membership. Keys are brought back within a week "
        "of leaving, and the shelf in the corridor must be empty by then.",
        max_new_tokens=64,
    ),
)
